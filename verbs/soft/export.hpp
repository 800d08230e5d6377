// NORIA_EXPORT: a function that this library shows under its C name. softverbs.map gives it its
// version; everything else stays hidden.
//
// Threads: not applicable.
#pragma once

#define NORIA_EXPORT extern "C" [[gnu::visibility("default")]]

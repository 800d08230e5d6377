// The tables of function pointers inside a context.
//
// Threads: init only.
#pragma once

#include "verbs/soft/device.hpp"

namespace noria::soft {

void fill_operations(Context& context);
// In a forked child: the data path answers with errors from now on.
void abandon_operations(Context& context);

}  // namespace noria::soft

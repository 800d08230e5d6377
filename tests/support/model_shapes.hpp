// The gradient tensors of well-known models in registration order: numel only, for planner tests.
//
// Threads: any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace noria::test {

using Numels = std::vector<uint64_t>;

inline void add_norm(Numels& model, uint64_t width) { model.insert(model.end(), {width, width}); }
inline void add_linear(Numels& model, uint64_t in, uint64_t out) {
  model.insert(model.end(), {in * out, out});
}

inline Numels resnet50() {
  Numels model{64 * 3 * 7 * 7};
  add_norm(model, 64);
  uint64_t in = 64;
  constexpr unsigned kBlocks[] = {3, 4, 6, 3};
  for (unsigned stage = 0; stage < 4; ++stage) {
    const uint64_t width = uint64_t{64} << stage;
    for (unsigned block = 0; block < kBlocks[stage]; ++block) {
      model.push_back(width * in);
      add_norm(model, width);
      model.push_back(width * width * 9);
      add_norm(model, width);
      model.push_back(4 * width * width);
      add_norm(model, 4 * width);
      if (block == 0) {
        model.push_back(4 * width * in);
        add_norm(model, 4 * width);
      }
      in = 4 * width;
    }
  }
  add_linear(model, 2048, 1000);
  return model;
}

inline Numels resnet18() {
  Numels model{64 * 3 * 7 * 7};
  add_norm(model, 64);
  uint64_t in = 64;
  for (unsigned stage = 0; stage < 4; ++stage) {
    const uint64_t width = uint64_t{64} << stage;
    for (unsigned block = 0; block < 2; ++block) {
      model.push_back(width * in * 9);
      add_norm(model, width);
      model.push_back(width * width * 9);
      add_norm(model, width);
      if (block == 0 && stage != 0) {
        model.push_back(width * in);
        add_norm(model, width);
      }
      in = width;
    }
  }
  add_linear(model, 512, 1000);
  return model;
}

inline Numels vgg16() {
  Numels model;
  uint64_t in = 3;
  for (const uint64_t out : Numels{64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512}) {
    add_linear(model, in * 9, out);
    in = out;
  }
  add_linear(model, 25088, 4096);
  add_linear(model, 4096, 4096);
  add_linear(model, 4096, 1000);
  return model;
}

inline Numels bert_base() {
  constexpr uint64_t kWidth = 768, kWide = 3072;
  Numels model{30522 * kWidth, 512 * kWidth, 2 * kWidth};
  add_norm(model, kWidth);
  for (unsigned layer = 0; layer < 12; ++layer) {
    for (unsigned i = 0; i < 4; ++i) add_linear(model, kWidth, kWidth);
    add_norm(model, kWidth);
    add_linear(model, kWidth, kWide);
    add_linear(model, kWide, kWidth);
    add_norm(model, kWidth);
  }
  add_linear(model, kWidth, kWidth);
  return model;
}

inline Numels gpt2() {
  constexpr uint64_t kWidth = 768;
  Numels model{50257 * kWidth, 1024 * kWidth};
  for (unsigned block = 0; block < 12; ++block) {
    add_norm(model, kWidth);
    add_linear(model, kWidth, 3 * kWidth);
    add_linear(model, kWidth, kWidth);
    add_norm(model, kWidth);
    add_linear(model, kWidth, 4 * kWidth);
    add_linear(model, 4 * kWidth, kWidth);
  }
  add_norm(model, kWidth);
  return model;
}

}  // namespace noria::test

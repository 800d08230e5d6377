// A job of forked ranks that meet by a unique id and speak the C API, for tests of libnoria.so.
//
// Threads: as RankCrew.
#pragma once

#include <noria/bucketing.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/support/ranks.hpp"

namespace noria::test {

inline std::string last_error() {
  std::string text(noria_last_error(nullptr, 0), '\0');
  noria_last_error(text.data(), text.size() + 1);
  return text;
}

#define EXPECT_NORIA(call)                                                               \
  do {                                                                                   \
    const noria_status noria_status_of_call = (call);                                    \
    EXPECT_EQ(noria_status_of_call, NORIA_OK)                                            \
        << noria_status_name(noria_status_of_call) << ": " << noria::test::last_error(); \
  } while (false)
#define ASSERT_NORIA(call)                                                               \
  do {                                                                                   \
    const noria_status noria_status_of_call = (call);                                    \
    ASSERT_EQ(noria_status_of_call, NORIA_OK)                                            \
        << noria_status_name(noria_status_of_call) << ": " << noria::test::last_error(); \
  } while (false)

struct JobOptions {
  uint32_t start_timeout_ms = 30000;
  uint32_t collective_timeout_ms = 30000;
};

// One rank's side: its communicator, and a wire to the test.
struct JobRank {
  noria_comm* comm = nullptr;
  int32_t rank = 0;
  int32_t size = 0;
  Wire parent;
};

inline noria_unique_id make_id() {
  noria_unique_id id{};
  EXPECT_NORIA(noria_get_unique_id(&id));
  return id;
}

inline noria_comm_config config_of(const noria_unique_id& id, int32_t rank, int32_t size,
                                   const JobOptions& options = {}) {
  noria_comm_config config = NORIA_COMM_CONFIG_INIT;
  config.id = &id;
  config.rank = rank;
  config.size = size;
  config.start_timeout_ms = options.start_timeout_ms;
  config.collective_timeout_ms = options.collective_timeout_ms;
  return config;
}

// Forks `size` ranks; each makes its communicator, runs the body and destroys it.
class Job {
 public:
  Job(int32_t size, const std::function<void(JobRank&)>& body, const JobOptions& options = {})
      : id_(make_id()), crew_(size, [=, this](int32_t rank, Wire& parent) {
          const noria_comm_config config = config_of(id_, rank, size, options);
          JobRank self{nullptr, rank, size, parent};
          ASSERT_NORIA(noria_comm_create(&config, &self.comm));
          body(self);
          noria_comm_destroy(self.comm);
        }) {}
  RankCrew& crew() { return crew_; }

 private:
  noria_unique_id id_;
  RankCrew crew_;
};

inline void run_job(int32_t size, const std::function<void(JobRank&)>& body,
                    const JobOptions& options = {}) {
  Job(size, body, options).crew().expect_success();
}

// Values that depend on rank and index, small enough that sums are exact in float32.
inline float value_of(int32_t rank, uint64_t index, uint32_t round = 0) {
  return static_cast<float>((index * 7 + static_cast<uint64_t>(rank) * 13 + round * 5) % 101);
}
inline float sum_of(int32_t size, uint64_t index, uint32_t round = 0) {
  float sum = 0;
  for (int32_t rank = 0; rank < size; ++rank) sum += value_of(rank, index, round);
  return sum;
}
inline std::vector<float> input_of(int32_t rank, uint64_t count, uint32_t round = 0) {
  std::vector<float> values(count);
  for (uint64_t i = 0; i < count; ++i) values[i] = value_of(rank, i, round);
  return values;
}
inline uint64_t wrong_values(const std::vector<float>& got, int32_t size, uint32_t round = 0) {
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < got.size(); ++i) wrong += got[i] != sum_of(size, i, round);
  return wrong;
}

}  // namespace noria::test

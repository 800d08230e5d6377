// Communicators through libnoria.so's C API, on the software HCA: forked ranks, a unique id.
#include <gtest/gtest.h>
#include <noria/observe.h>
#include <sys/socket.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <thread>

#include "tests/support/job.hpp"

namespace noria::test {
namespace {

namespace fs = std::filesystem;

class SizesTest : public ::testing::TestWithParam<int32_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, SizesTest, ::testing::Values(2, 3, 4, 8));

TEST_P(SizesTest, All_reduce_is_right_in_place_and_not) {
  run_job(GetParam(), [](JobRank& self) {
    uint32_t round = 0;
    for (const uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{7}, uint64_t{1000},
                                 uint64_t{262'147}, uint64_t{1'500'001}}) {
      ++round;
      const std::vector<float> in = input_of(self.rank, count, round);
      std::vector<float> out(count, -1.0f);
      ASSERT_NORIA(noria_all_reduce(self.comm, in.data(), out.data(), count, NORIA_FLOAT32,
                                    NORIA_SUM, nullptr, nullptr));
      EXPECT_EQ(wrong_values(out, self.size, round), 0u) << count;
      EXPECT_EQ(in, input_of(self.rank, count, round)) << "the input was written";

      std::vector<float> both = in;
      ASSERT_NORIA(noria_all_reduce(self.comm, both.data(), both.data(), count, NORIA_FLOAT32,
                                    NORIA_SUM, nullptr, nullptr));
      EXPECT_EQ(wrong_values(both, self.size, round), 0u) << count;
    }
  });
}

TEST_P(SizesTest, Broadcast_is_right_from_every_root) {
  run_job(GetParam(), [](JobRank& self) {
    for (int32_t root = 0; root < self.size; ++root) {
      for (const uint64_t count : {uint64_t{1}, uint64_t{300'003}}) {
        const std::vector<float> in = input_of(root, count);
        std::vector<float> out(count, -1.0f);
        // Elsewhere `in` is not looked at.
        ASSERT_NORIA(noria_broadcast(self.comm, self.rank == root ? in.data() : nullptr, out.data(),
                                     count, NORIA_FLOAT32, root, nullptr, nullptr));
        EXPECT_EQ(out, in) << "root " << root;
      }
    }
  });
}

// Counts a rank: none on rank 1, the most on the last.
std::vector<uint64_t> uneven_counts(int32_t size, uint64_t unit) {
  std::vector<uint64_t> counts;
  for (int32_t rank = 0; rank < size; ++rank)
    counts.push_back(rank == 1 ? 0 : unit * static_cast<uint64_t>(rank + 1) + 3);
  return counts;
}

uint64_t bytes_sent(noria_comm* comm) {
  noria_comm_info info{};
  info.struct_size = sizeof info;
  EXPECT_NORIA(noria_observe_comm(comm, &info));
  return info.sent_bytes;
}

TEST_P(SizesTest, Reduce_scatter_then_all_gather_is_an_all_reduce_and_carries_half_of_it_each) {
  run_job(GetParam(), [](JobRank& self) {
    const auto size = static_cast<uint64_t>(self.size), rank = static_cast<uint64_t>(self.rank);
    for (const uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{1000}, uint64_t{262'147}})
      for (const bool in_place : {false, true}) {
        std::vector<float> in = input_of(self.rank, size * count), block(count), out(size * count);
        float* const part = in_place ? in.data() + rank * count : block.data();
        const uint64_t before = bytes_sent(self.comm);
        ASSERT_NORIA(noria_reduce_scatter(self.comm, in.data(), part, count, NORIA_FLOAT32,
                                          NORIA_SUM, nullptr, nullptr));
        const uint64_t scattered = bytes_sent(self.comm);
        for (uint64_t i = 0; i < count; ++i)
          ASSERT_EQ(part[i], sum_of(self.size, rank * count + i)) << count;
        noria_work* work = nullptr;
        float* const whole = in_place ? in.data() : out.data();
        ASSERT_NORIA(
            noria_all_gather(self.comm, part, whole, count, NORIA_FLOAT32, nullptr, &work));
        ASSERT_NORIA(noria_work_wait(work, 0));
        noria_work_release(work);
        const uint64_t gathered = bytes_sent(self.comm);
        EXPECT_EQ(wrong_values(in_place ? in : out, self.size), 0U) << count;
        // (n-1)/n of the data each, and beside it headers and credits.
        const uint64_t data = (size - 1) * count * sizeof(float), slack = data / 50 + 4096;
        EXPECT_GE(scattered - before, data);
        EXPECT_LE(scattered - before, data + slack);
        EXPECT_GE(gathered - scattered, data);
        EXPECT_LE(gathered - scattered, data + slack);
      }
  });
}

TEST_P(SizesTest, Blocks_may_be_of_different_sizes) {
  run_job(GetParam(), [](JobRank& self) {
    for (const uint64_t unit : {uint64_t{5}, uint64_t{100'000}}) {
      const std::vector<uint64_t> counts = uneven_counts(self.size, unit);
      uint64_t total = 0, first = 0;
      for (size_t rank = 0; rank < counts.size(); ++rank) {
        if (static_cast<int32_t>(rank) < self.rank) first += counts[rank];
        total += counts[rank];
      }
      const uint64_t own = counts[static_cast<size_t>(self.rank)];
      const std::vector<float> in = input_of(self.rank, total);
      std::vector<float> block(own), out(total, -1.0f);
      ASSERT_NORIA(noria_reduce_scatter_v(self.comm, in.data(), block.data(), counts.data(),
                                          NORIA_FLOAT32, NORIA_SUM, nullptr, nullptr));
      for (uint64_t i = 0; i < own; ++i) ASSERT_EQ(block[i], sum_of(self.size, first + i));
      ASSERT_NORIA(noria_all_gather_v(self.comm, block.data(), out.data(), counts.data(),
                                      NORIA_FLOAT32, nullptr, nullptr));
      EXPECT_EQ(wrong_values(out, self.size), 0U);
    }
  });
}

TEST_P(SizesTest, All_gather_takes_bytes_of_any_kind) {
  run_job(GetParam(), [](JobRank& self) {
    const auto size = static_cast<size_t>(self.size);
    const std::vector<uint8_t> in(333, static_cast<uint8_t>(self.rank + 40));
    std::vector<uint8_t> out(333 * size);
    ASSERT_NORIA(
        noria_all_gather(self.comm, in.data(), out.data(), 333, NORIA_UINT8, nullptr, nullptr));
    for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], i / 333 + 40);
  });
}

TEST_P(SizesTest, Barrier_holds_until_the_last_came) {
  Job job(GetParam(), [](JobRank& self) {
    const bool is_last = self.rank == self.size - 1;
    if (is_last) self.parent.recv<uint8_t>();
    ASSERT_NORIA(noria_barrier(self.comm, nullptr, nullptr));
    self.parent.send(uint8_t{1});
  });
  // Expect: nobody is through while the last has not come.
  for (int32_t rank = 0; rank + 1 < GetParam(); ++rank) {
    char byte = 0;
    EXPECT_EQ(::recv(job.crew().wire(rank).fd(), &byte, 1, MSG_DONTWAIT), -1);
  }
  job.crew().wire(GetParam() - 1).send(uint8_t{1});
  for (int32_t rank = 0; rank < GetParam(); ++rank) job.crew().wire(rank).recv<uint8_t>();
  job.crew().expect_success();
}

TEST_P(SizesTest, Asynchronous_works_end_in_order_and_are_right) {
  run_job(GetParam(), [](JobRank& self) {
    constexpr uint32_t kWorks = 20;
    std::vector<std::vector<float>> buffers;
    std::vector<noria_work*> works(kWorks);
    for (uint32_t i = 0; i < kWorks; ++i) buffers.push_back(input_of(self.rank, 1 + 9001 * i, i));
    for (uint32_t i = 0; i < kWorks; ++i)
      ASSERT_NORIA(noria_all_reduce(self.comm, buffers[i].data(), buffers[i].data(),
                                    buffers[i].size(), NORIA_FLOAT32, NORIA_SUM, nullptr,
                                    &works[i]));
    // The last first: then all before it are done.
    ASSERT_NORIA(noria_work_wait(works[kWorks - 1], 0));
    for (uint32_t i = 0; i < kWorks; ++i) {
      EXPECT_NORIA(noria_work_test(works[i]));
      EXPECT_EQ(wrong_values(buffers[i], self.size, i), 0u) << i;
      noria_work_release(works[i]);
    }
  });
}

TEST(CommTest, Works_may_be_released_before_they_are_done) {
  run_job(2, [](JobRank& self) {
    std::vector<float> values = input_of(self.rank, 100'000);
    for (int i = 0; i < 50; ++i) {
      noria_work* work = nullptr;
      ASSERT_NORIA(noria_all_reduce(self.comm, values.data(), values.data(), values.size(),
                                    NORIA_FLOAT32, NORIA_MAX, nullptr, &work));
      noria_work_release(work);
    }
    ASSERT_NORIA(noria_barrier(self.comm, nullptr, nullptr));
    float most = 0;
    for (int32_t rank = 0; rank < 2; ++rank) most = std::max(most, value_of(rank, 77));
    EXPECT_EQ(values[77], most);
  });
}

TEST(CommTest, Works_are_tested_without_waiting_and_waited_for_with_a_bound) {
  Job job(2, [](JobRank& self) {
    std::vector<float> values = input_of(self.rank, 1000);
    if (self.rank == 1) self.parent.recv<uint8_t>();
    noria_work* work = nullptr;
    ASSERT_NORIA(noria_all_reduce(self.comm, values.data(), values.data(), values.size(),
                                  NORIA_FLOAT32, NORIA_SUM, nullptr, &work));
    if (self.rank == 0) {
      EXPECT_EQ(noria_work_test(work), NORIA_IN_PROGRESS);
      EXPECT_EQ(noria_work_wait(work, 5), NORIA_E_TIMEOUT);
      self.parent.send(uint8_t{1});
    }
    EXPECT_NORIA(noria_work_wait(work, 0));
    EXPECT_NORIA(noria_work_test(work));
    EXPECT_EQ(wrong_values(values, 2), 0u);
    noria_work_release(work);
  });
  job.crew().wire(0).recv<uint8_t>();
  job.crew().wire(1).send(uint8_t{1});
  job.crew().expect_success();
}

TEST(CommTest, Two_communicators_in_the_same_processes_do_not_mix) {
  const noria_unique_id second = make_id();
  run_job(2, [&](JobRank& self) {
    noria_comm* other = nullptr;
    const noria_comm_config config = config_of(second, 1 - self.rank, 2);
    // The second one's rank 0 is rank 1 of the first.
    ASSERT_NORIA(noria_comm_create(&config, &other));
    std::vector<float> a = input_of(self.rank, 50'000, 1), b = input_of(self.rank, 50'000, 2);
    noria_work *first_work = nullptr, *other_work = nullptr;
    ASSERT_NORIA(noria_all_reduce(self.comm, a.data(), a.data(), a.size(), NORIA_FLOAT32, NORIA_SUM,
                                  nullptr, &first_work));
    ASSERT_NORIA(noria_all_reduce(other, b.data(), b.data(), b.size(), NORIA_FLOAT32, NORIA_SUM,
                                  nullptr, &other_work));
    EXPECT_NORIA(noria_work_wait(other_work, 0));
    EXPECT_NORIA(noria_work_wait(first_work, 0));
    EXPECT_EQ(wrong_values(a, 2, 1), 0u);
    EXPECT_EQ(wrong_values(b, 2, 2), 0u);
    noria_work_release(first_work);
    noria_work_release(other_work);
    noria_comm_destroy(other);
  });
}

TEST(CommTest, Two_jobs_at_once_do_not_meet) {
  const auto body = [](JobRank& self) {
    for (uint32_t round = 0; round < 20; ++round) {
      std::vector<float> values = input_of(self.rank, 10'000, round);
      ASSERT_NORIA(noria_all_reduce(self.comm, values.data(), values.data(), values.size(),
                                    NORIA_FLOAT32, NORIA_SUM, nullptr, nullptr));
      EXPECT_EQ(wrong_values(values, self.size, round), 0u);
    }
  };
  Job two(2, body), three(3, body);
  two.crew().expect_success();
  three.crew().expect_success();
}

TEST(CommTest, Communicators_come_and_go) {
  run_ranks(2, [ids = std::vector{make_id(), make_id(), make_id()}](int32_t rank, Wire&) {
    for (const noria_unique_id& id : ids) {
      noria_comm* comm = nullptr;
      const noria_comm_config config = config_of(id, rank, 2);
      ASSERT_NORIA(noria_comm_create(&config, &comm));
      std::vector<float> values = input_of(rank, 1000);
      EXPECT_NORIA(noria_all_reduce(comm, values.data(), values.data(), 1000, NORIA_FLOAT32,
                                    NORIA_SUM, nullptr, nullptr));
      EXPECT_EQ(wrong_values(values, 2), 0u);
      noria_comm_destroy(comm);
    }
  });
}

TEST(CommTest, A_split_groups_by_color_and_orders_by_key) {
  run_job(5, [](JobRank& self) {
    // Even ranks in reverse order, 1 and 3 in theirs; 4 stays out.
    const bool is_out = self.rank == 4, is_even = self.rank % 2 == 0;
    noria_comm* child = self.comm;
    ASSERT_NORIA(noria_comm_split(self.comm,
                                  is_out    ? NORIA_SPLIT_NOCOLOR
                                  : is_even ? 7
                                            : 0,
                                  is_even ? -self.rank : 5, &child));
    if (is_out) {
      EXPECT_EQ(child, nullptr);
    } else {
      int32_t rank = -1, size = -1;
      EXPECT_NORIA(noria_comm_rank(child, &rank));
      EXPECT_NORIA(noria_comm_size(child, &size));
      EXPECT_EQ(size, 2);
      EXPECT_EQ(rank, is_even ? (self.rank == 2 ? 0 : 1) : self.rank / 2);
      // Each group sums its own.
      int64_t sum = self.rank;
      EXPECT_NORIA(
          noria_all_reduce(child, &sum, &sum, 1, NORIA_INT64, NORIA_SUM, nullptr, nullptr));
      EXPECT_EQ(sum, is_even ? 2 : 4);
    }
    noria_comm_destroy(child);
    int64_t all = self.rank;
    EXPECT_NORIA(
        noria_all_reduce(self.comm, &all, &all, 1, NORIA_INT64, NORIA_SUM, nullptr, nullptr));
    EXPECT_EQ(all, 10);
  });
}

TEST(CommTest, Parent_and_child_work_at_once_from_threads_of_their_own) {
  run_job(4, [](JobRank& self) {
    noria_comm* child = nullptr;
    ASSERT_NORIA(noria_comm_split(self.comm, self.rank / 2, 0, &child));
    const auto reduce = [](noria_comm* comm, int32_t size, int32_t rank) {
      for (uint32_t round = 0; round < 30; ++round) {
        std::vector<float> values = input_of(rank, 20'000, round);
        ASSERT_NORIA(noria_all_reduce(comm, values.data(), values.data(), values.size(),
                                      NORIA_FLOAT32, NORIA_SUM, nullptr, nullptr));
        EXPECT_EQ(wrong_values(values, size, round), 0U);
      }
    };
    std::thread beside([&] { reduce(child, 2, self.rank % 2); });
    reduce(self.comm, 4, self.rank);
    beside.join();
    noria_comm_destroy(child);
  });
}

TEST(CommTest, A_child_outlives_its_parent_and_fails_alone) {
  run_job(4, [](JobRank& self) {
    noria_comm *child = nullptr, *grandchild = nullptr;
    ASSERT_NORIA(noria_comm_split(self.comm, 0, 0, &child));
    ASSERT_NORIA(noria_comm_split(child, self.rank / 2, 0, &grandchild));
    EXPECT_NORIA(noria_comm_abort(child, "no more of this one"));
    // Its children and its parent go on.
    EXPECT_NORIA(noria_barrier(grandchild, nullptr, nullptr));
    EXPECT_NORIA(noria_barrier(self.comm, nullptr, nullptr));
    noria_comm* none = nullptr;
    EXPECT_EQ(noria_comm_split(child, 0, 0, &none), NORIA_E_ABORTED);
    noria_comm_destroy(child);
    EXPECT_NORIA(noria_barrier(grandchild, nullptr, nullptr));
    noria_comm_destroy(grandchild);
  });
}

TEST(CommTest, Groups_of_a_split_write_traces_of_their_own) {
  std::string folder = (fs::temp_directory_path() / "noria_split_XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  setenv("NORIA_TRACE", (folder + "/job").c_str(), 1);
  run_job(4, [](JobRank& self) {
    noria_comm* child = nullptr;
    ASSERT_NORIA(noria_comm_split(self.comm, self.rank / 2, 0, &child));
    noria_comm_destroy(child);
  });
  unsetenv("NORIA_TRACE");
  // Expect: a file for each rank of each group, and each group under an identity of its own.
  std::map<std::string, std::set<std::string>> files_of_groups;
  for (const fs::directory_entry& file : fs::directory_iterator(folder)) {
    std::string head;
    std::getline(std::ifstream(file.path()), head);
    const size_t at = head.find("\"group\":"), end = head.find(',', at);
    ASSERT_NE(at, std::string::npos) << head;
    files_of_groups[head.substr(at, end - at)].insert(file.path().filename().string());
  }
  fs::remove_all(folder);
  std::set<std::set<std::string>> groups;
  for (const auto& [group, files] : files_of_groups) groups.insert(files);
  EXPECT_EQ(groups,
            (std::set<std::set<std::string>>{
                {"job.rank0.jsonl", "job.rank1.jsonl", "job.rank2.jsonl", "job.rank3.jsonl"},
                {"job.split0.color0.rank0.jsonl", "job.split0.color0.rank1.jsonl"},
                {"job.split0.color1.rank0.jsonl", "job.split0.color1.rank1.jsonl"}}));
}

TEST(CommTest, A_bad_color_is_told_on_all_ranks) {
  run_job(3, [](JobRank& self) {
    noria_comm* child = nullptr;
    EXPECT_EQ(noria_comm_split(self.comm, self.rank == 1 ? -5 : 0, 0, &child), NORIA_E_ARG);
    EXPECT_NE(last_error().find("rank 1: noria_comm_split: color -5"), std::string::npos)
        << last_error();
    EXPECT_NORIA(noria_barrier(self.comm, nullptr, nullptr));
  });
}

TEST(CommTest, Sruns_variables_are_enough) {
  // A port that is free now, as below, among those of Slurm's jobs.
  std::vector<noria_unique_id> ids;
  uint16_t port = 0;
  while (port < 20000 || port >= 40000) {
    ASSERT_LT(ids.size(), 1000U) << "the system gives no port below 40000";
    ids.push_back(make_id());
    std::memcpy(&port, ids.back().bytes + 12, sizeof port);
  }
  run_ranks(3, [&](int32_t rank, Wire&) {
    setenv("SLURM_PROCID", std::to_string(rank).c_str(), 1);
    setenv("SLURM_NTASKS", "3", 1);
    setenv("SLURM_JOB_ID", std::to_string(40000 + port - 20000).c_str(), 1);
    setenv("SLURM_JOB_NODELIST", "localhost,elsewhere[1-4]", 1);
    noria_comm_config config = NORIA_COMM_CONFIG_INIT;
    noria_comm* comm = nullptr;
    ASSERT_NORIA(noria_comm_create(&config, &comm));
    std::vector<float> values = input_of(rank, 1000);
    EXPECT_NORIA(noria_all_reduce(comm, values.data(), values.data(), 1000, NORIA_FLOAT32,
                                  NORIA_SUM, nullptr, nullptr));
    EXPECT_EQ(wrong_values(values, 3), 0u);
    noria_comm_destroy(comm);
  });
}

TEST(CommTest, Torchruns_variables_are_enough) {
  // A port that is free now: the id's own, which nobody else will use.
  const noria_unique_id id = make_id();
  uint16_t port = 0;
  std::memcpy(&port, id.bytes + 12, sizeof port);
  run_ranks(3, [&](int32_t rank, Wire&) {
    setenv("RANK", std::to_string(rank).c_str(), 1);
    setenv("WORLD_SIZE", "3", 1);
    setenv("MASTER_ADDR", "localhost", 1);
    setenv("MASTER_PORT", std::to_string(port - 29).c_str(), 1);
    noria_comm_config config = NORIA_COMM_CONFIG_INIT;
    noria_comm* comm = nullptr;
    // Twice, as a program that makes a second communicator does: at the same port.
    for (uint32_t round = 0; round < 2; ++round) {
      ASSERT_NORIA(noria_comm_create(&config, &comm));
      std::vector<float> values = input_of(rank, 1000, round);
      EXPECT_NORIA(noria_all_reduce(comm, values.data(), values.data(), 1000, NORIA_FLOAT32,
                                    NORIA_SUM, nullptr, nullptr));
      EXPECT_EQ(wrong_values(values, 3, round), 0u);
      noria_comm_destroy(comm);
    }
  });
}

TEST(CommTest, One_rank_needs_no_device) {
  run_ranks(1, [](int32_t, Wire&) {
    setenv("NORIA_IBVERBS", "/nowhere/libibverbs.so", 1);
    noria_comm_config config = NORIA_COMM_CONFIG_INIT;
    config.rank = 0;
    config.size = 1;
    noria_comm* comm = nullptr;
    ASSERT_NORIA(noria_comm_create(&config, &comm));
    const std::vector<float> in = input_of(0, 1000);
    std::vector<float> out(1000);
    noria_work* work = nullptr;
    EXPECT_NORIA(noria_all_reduce(comm, in.data(), out.data(), 1000, NORIA_FLOAT32, NORIA_AVG,
                                  nullptr, &work));
    EXPECT_NORIA(noria_work_test(work));
    EXPECT_EQ(out, in);
    noria_work_release(work);
    EXPECT_NORIA(noria_broadcast(comm, in.data(), out.data(), 10, NORIA_INT8, 0, nullptr, nullptr));
    EXPECT_NORIA(noria_barrier(comm, nullptr, nullptr));
    noria_comm_destroy(comm);
  });
}

TEST(CommTest, Shows_its_device_and_counts_what_it_moved) {
  run_job(2, [](JobRank& self) {
    std::vector<float> values = input_of(self.rank, 1 << 20);
    ASSERT_NORIA(noria_all_reduce(self.comm, values.data(), values.data(), values.size(),
                                  NORIA_FLOAT32, NORIA_SUM, nullptr, nullptr));
    ASSERT_NORIA(noria_barrier(self.comm, nullptr, nullptr));
    noria_comm_info info{};
    info.struct_size = sizeof info;
    ASSERT_NORIA(noria_observe_comm(self.comm, &info));
    EXPECT_EQ(info.rank, self.rank);
    EXPECT_EQ(info.size, 2);
    EXPECT_NE(std::string(info.device).find("software HCA"), std::string::npos) << info.device;
    // 2(n-1)/n x size a rank, in each direction.
    EXPECT_GE(info.sent_bytes, uint64_t{4} << 20);
    EXPECT_GE(info.received_bytes, uint64_t{4} << 20);
  });
}

uint64_t counter(const std::string& name) {
  noria_counter_info info{};
  info.struct_size = sizeof info;
  for (uint32_t index = 0; noria_observe_counter(index, &info) == NORIA_OK; ++index)
    if (info.name == name) return info.value;
  ADD_FAILURE() << name << " is no counter";
  return 0;
}

TEST(CommTest, Counts_what_it_decided) {
  run_job(2, [](JobRank& self) {
    const uint64_t sent_before = counter("messages_sent");
    const uint64_t read_before = counter("bytes_read");
    std::vector<float> values = input_of(self.rank, 1 << 20);
    ASSERT_NORIA(noria_all_reduce(self.comm, values.data(), values.data(), values.size(),
                                  NORIA_FLOAT32, NORIA_SUM, nullptr, nullptr));
    noria_comm_info info{};
    info.struct_size = sizeof info;
    ASSERT_NORIA(noria_observe_comm(self.comm, &info));
    // Half of the data was fetched by this rank: by reads, or by messages where the ring finds that
    // they suit this memory better.
    EXPECT_GT(counter("messages_sent"), sent_before);
    EXPECT_GE(counter("receives_posted"), 1U);
    const uint64_t read = counter("bytes_read") - read_before;
    EXPECT_TRUE(read == 0 || (info.reads != 0 && read == uint64_t{2} << 20)) << read;
  });
}

}  // namespace
}  // namespace noria::test

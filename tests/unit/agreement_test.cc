#include "bucketing/agreement.hpp"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <thread>

namespace noria::bucketing {
namespace {

// A control plane of threads: every rank gives, all get. A rank that does not come within the bound
// fails the exchange for those who did.
class Meeting {
 public:
  explicit Meeting(size_t ranks) : given_(ranks) {}

  Outcome<std::vector<std::string>> gather(size_t rank, const std::string& bytes) {
    std::unique_lock lock(mutex_);
    const unsigned round = round_;
    given_[rank] = bytes;
    largest_ = std::max(largest_, bytes.size());
    if (++came_ == given_.size()) {
      result_ = given_;
      came_ = 0;
      ++round_;
      everybody_.notify_all();
    } else if (!everybody_.wait_for(lock, std::chrono::seconds(20),
                                    [&] { return round_ != round; })) {
      return Failure{NORIA_E_TIMEOUT, "a rank did not come"};
    }
    return result_;
  }
  size_t largest() const { return largest_; }
  unsigned rounds() const { return round_; }

 private:
  std::mutex mutex_;
  std::condition_variable everybody_;
  std::vector<std::string> given_, result_;
  size_t came_ = 0, largest_ = 0;
  unsigned round_ = 0;
};

struct Rank {
  std::vector<Tensor> tensors;
  ReducerConfig config{};
};

struct Meant {
  std::vector<Outcome<Ok>> outcomes;
  size_t largest = 0;
  unsigned rounds = 0;
};

Meant meet(const std::vector<Rank>& ranks) {
  Meeting meeting(ranks.size());
  Meant meant{.outcomes = std::vector<Outcome<Ok>>(ranks.size(), Ok{})};
  std::vector<std::thread> threads;
  for (size_t r = 0; r < ranks.size(); ++r)
    threads.emplace_back([&, r] {
      TensorTable table;
      for (const Tensor& tensor : ranks[r].tensors)
        if (!table.add(tensor.name, tensor.dtype, tensor.numel).is_ok()) std::abort();
      meant.outcomes[r] = agree(table, ranks[r].config,
                                [&meeting, r](const std::string&, const std::string& bytes) {
                                  return meeting.gather(r, bytes);
                                });
    });
  for (std::thread& thread : threads) thread.join();
  meant.largest = meeting.largest();
  meant.rounds = meeting.rounds();
  return meant;
}

std::vector<Tensor> model(size_t tensors) {
  std::vector<Tensor> model;
  for (size_t i = 0; i < tensors; ++i)
    model.push_back({"layer" + std::to_string(i), NORIA_FLOAT32, 10 + i});
  return model;
}

void expect_same_mismatch(const Meant& meant, const std::string& part) {
  for (const auto& outcome : meant.outcomes) {
    ASSERT_FALSE(outcome.is_ok());
    EXPECT_EQ(outcome.failure().code, NORIA_E_MISMATCH);
    EXPECT_EQ(outcome.failure().text, meant.outcomes[0].failure().text);
  }
  EXPECT_NE(meant.outcomes[0].failure().text.find(part), std::string::npos)
      << meant.outcomes[0].failure().text;
}

TEST(Agreement, Equal_ranks_agree_in_one_exchange) {
  const Meant meant = meet(std::vector<Rank>(4, Rank{.tensors = model(161)}));
  for (const auto& outcome : meant.outcomes) EXPECT_TRUE(outcome.is_ok());
  EXPECT_EQ(meant.rounds, 1u);
  EXPECT_LE(meant.largest, 256u);
}

TEST(Agreement, Plans_of_two_kinds_are_told_by_name) {
  std::vector<Rank> ranks(2, Rank{.tensors = model(3)});
  ranks[1].config.plan = PlanKind::strict;
  expect_same_mismatch(meet(ranks), "the ranks differ in plan: ddp on rank 0; strict on rank 1");
}

TEST(Agreement, Nothing_registered_anywhere_is_agreement) {
  for (const auto& outcome : meet(std::vector<Rank>(2)).outcomes) EXPECT_TRUE(outcome.is_ok());
}

TEST(Agreement, A_different_size_is_told_to_all_by_tensor_and_rank) {
  std::vector<Rank> ranks(3, Rank{.tensors = model(161)});
  ranks[2].tensors[77].numel = 5;
  ranks[1].tensors[100].name = "other";  // a later difference does not hide the first
  expect_same_mismatch(meet(ranks),
                       "tensor 77: 'layer77', float32, 87 elements on ranks 0, 1; "
                       "'layer77', float32, 5 elements on rank 2");
}

TEST(Agreement, A_different_name_or_dtype_is_told) {
  std::vector<Rank> ranks(2, Rank{.tensors = model(3)});
  ranks[0].tensors[0].name = "embed";
  expect_same_mismatch(meet(ranks), "tensor 0: 'embed', float32, 10 elements on rank 0; 'layer0'");

  ranks = std::vector<Rank>(2, Rank{.tensors = model(3)});
  ranks[1].tensors[2].dtype = NORIA_BFLOAT16;
  expect_same_mismatch(meet(ranks), "'layer2', bfloat16, 12 elements on rank 1");
}

TEST(Agreement, A_missing_tensor_is_told_by_the_first_that_only_some_have) {
  std::vector<Rank> ranks(3, Rank{.tensors = model(300)});
  ranks[1].tensors.resize(299);
  expect_same_mismatch(
      meet(ranks), "tensor 299: 'layer299', float32, 309 elements on ranks 0, 2; none on rank 1");

  // One that is missing in the middle shows as the first shifted one.
  ranks = std::vector<Rank>(2, Rank{.tensors = model(300)});
  ranks[1].tensors.erase(ranks[1].tensors.begin() + 10);
  expect_same_mismatch(meet(ranks), "tensor 10: 'layer10'");

  ranks = std::vector<Rank>(2, Rank{.tensors = model(1)});
  ranks[0].tensors.clear();
  expect_same_mismatch(meet(ranks), "tensor 0: none on rank 0; 'layer0'");
}

TEST(Agreement, A_different_configuration_is_told_by_field_and_value) {
  std::vector<Rank> ranks(3, Rank{.tensors = model(3)});
  ranks[1].config.caps.bucket_bytes = 1_MiB;
  ranks[1].tensors[0].numel = 1;  // the configuration comes first: it explains more
  expect_same_mismatch(meet(ranks), "bucket_bytes: 26214400 on ranks 0, 2; 1048576 on rank 1");

  ranks = std::vector<Rank>(2, Rank{.tensors = model(3)});
  ranks[0].config.op = NORIA_SUM;
  expect_same_mismatch(meet(ranks), "op: sum on rank 0; avg on rank 1");
}

TEST(Agreement, A_hundred_thousand_tensors_are_compared_in_small_messages) {
  std::vector<Rank> ranks(2, Rank{.tensors = model(100'000)});
  ranks[1].tensors[98'765].numel = 1;
  const Meant meant = meet(ranks);
  expect_same_mismatch(meant, "tensor 98765: ");
  EXPECT_LE(meant.largest, 4096u);
  EXPECT_LE(meant.rounds, 6u);
}

TEST(Agreement, A_failed_exchange_is_handed_up) {
  const auto broken = [](const std::string&,
                         const std::string&) -> Outcome<std::vector<std::string>> {
    return Failure{NORIA_E_PEER, "rank 1 died"};
  };
  EXPECT_EQ(agree({}, {}, broken).failure().text, "rank 1 died");
  EXPECT_EQ(agree_on_success(Ok{}, "memory", broken).failure().code, NORIA_E_PEER);
}

TEST(Agreement, Bytes_of_another_version_are_told_as_a_version) {
  // The other rank's facts are shorter than ours and hold another version.
  const auto old_rank = [](const std::string&,
                           const std::string& mine) -> Outcome<std::vector<std::string>> {
    const uint64_t version = 7;
    return std::vector<std::string>{
        mine, std::string(reinterpret_cast<const char*>(&version), sizeof version)};
  };
  const auto refused = agree({}, {}, old_rank);
  ASSERT_FALSE(refused.is_ok());
  EXPECT_NE(refused.failure().text.find("the version of noria: "), std::string::npos);
  EXPECT_NE(refused.failure().text.find("; 7 on rank 1"), std::string::npos);
}

TEST(Agreement, One_ranks_failure_becomes_everybodys) {
  Meeting meeting(3);
  std::vector<Outcome<Ok>> outcomes(3, Ok{});
  std::vector<std::thread> threads;
  for (size_t r = 0; r < 3; ++r)
    threads.emplace_back([&, r] {
      const Outcome<Ok> mine =
          r == 1 ? Outcome<Ok>(Failure{NORIA_E_NOMEM, "no 5 bytes"}) : Outcome<Ok>(Ok{});
      outcomes[r] =
          agree_on_success(mine, "memory", [&meeting, r](const auto&, const std::string& bytes) {
            return meeting.gather(r, bytes);
          });
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& outcome : outcomes) {
    ASSERT_FALSE(outcome.is_ok());
    EXPECT_EQ(outcome.failure().code, NORIA_E_NOMEM);
    EXPECT_EQ(outcome.failure().text, "rank 1: no 5 bytes");
  }
}

TEST(Agreement, A_complaint_without_a_failures_code_is_a_failure_all_the_same) {
  for (const noria_status code : {0, 1}) {
    const auto heard = agree_on_success(
        Ok{}, "memory",
        [code](const std::string&, const std::string& mine) -> Outcome<std::vector<std::string>> {
          return std::vector<std::string>{
              mine, std::string(reinterpret_cast<const char*>(&code), sizeof code) + "odd"};
        });
    ASSERT_FALSE(heard.is_ok());
    EXPECT_EQ(heard.failure().code, NORIA_E_INTERNAL);
    EXPECT_EQ(heard.failure().text, "rank 1: odd");
  }
}

TEST(Agreement, Values_by_rank_stay_short) {
  std::vector<std::string> values(100, "1");
  EXPECT_EQ(values_by_rank(values), "1 on ranks 0, 1, 2, 3, 4, 5, 6, 7 and 92 more");
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::to_string(i);
  EXPECT_EQ(values_by_rank(values),
            "0 on rank 0; 1 on rank 1; 2 on rank 2; 3 on rank 3; and 96 more values");
}

}  // namespace
}  // namespace noria::bucketing

#include "perf/trace.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "perf/elements.hpp"
#include "perf/exit_codes.hpp"
#include "perf/ready_times.hpp"

namespace noria::perf {
namespace {

struct Known {
  const char* name;
  size_t tensors;
  uint64_t values;
  size_t below_64k;  // tensors of fewer bytes, fp32
  double largest_mib;
};

TEST(Traces, Models_have_the_counts_that_are_known_of_them) {
  for (const Known& known :
       {Known{"resnet18", 62, 11'689'512, 43, 9.0}, Known{"resnet50", 161, 25'557'032, 109, 9.0},
        Known{"resnet50-small", 109, 67'624, 109, 0.036}, Known{"vgg16", 32, 138'357'544, 17, 392},
        Known{"bert-base", 199, 109'482'240, 124, 89.4}, Known{"gpt2", 148, 124'439'808, 98, 147.2},
        Known{"llama-7b", 291, 6'738'415'616, 65, 500}, Known{"vit-b16", 152, 86'567'656, 101, 9.0},
        Known{"dlrm", 16, 2'368'897, 10, 4.0}}) {
    const auto trace = make_trace(known.name);
    ASSERT_TRUE(trace.has_value()) << known.name;
    EXPECT_EQ(trace->name, known.name);
    EXPECT_EQ(trace->tensors.size(), known.tensors) << known.name;
    EXPECT_EQ(trace->numel(), known.values) << known.name;
    EXPECT_EQ(trace->bytes(), known.values * 4) << known.name;
    size_t below = 0;
    uint64_t largest = 0;
    std::set<std::string> names;
    for (const TraceTensor& tensor : trace->tensors) {
      below += tensor.numel * 4 < 65536 ? 1U : 0U;
      largest = std::max(largest, tensor.numel * 4);
      names.insert(tensor.name);
    }
    EXPECT_EQ(below, known.below_64k) << known.name;
    EXPECT_NEAR(static_cast<double>(largest) / 0x1p20, known.largest_mib, 0.05) << known.name;
    EXPECT_EQ(names.size(), known.tensors) << known.name << ": names repeat";
  }
}

TEST(Traces, Every_name_that_is_offered_makes_a_trace) {
  for (const std::string& name : trace_names()) EXPECT_TRUE(make_trace(name).has_value()) << name;
  EXPECT_FALSE(make_trace("resnet").has_value());
}

TEST(Traces, An_unknown_name_is_refused_with_the_nearest_model) {
  try {
    load_trace("resnet5O");
    FAIL();
  } catch (const ToolError& error) {
    EXPECT_EQ(error.code(), Exit::usage);
    EXPECT_STREQ(error.what(),
                 "--trace: 'resnet5O' is neither a known model nor a file that can be read; the "
                 "nearest model is resnet50");
  }
}

constexpr const char* kGood = R"({"name": "m", "tensors": [
  {"name": "a", "shape": [2, 3], "dtype": "f32", "ready_ms": 3},
  {"name": "b", "shape": [], "dtype": "bf16", "ready_ms": 1.5},
  {"name": "c", "shape": [0, 7], "dtype": "i64", "ready_ms": 1.5}], "arrival": [2, 1, 0]})";

TEST(Trace_file, A_good_file_is_read_in_full) {
  const Trace trace = parse_trace(kGood, "m.json");
  EXPECT_EQ(trace.name, "m");
  ASSERT_EQ(trace.tensors.size(), 3U);
  EXPECT_EQ(trace.tensors[0].numel, 6U);
  EXPECT_EQ(trace.tensors[1].numel, 1U);
  EXPECT_EQ(trace.tensors[2].numel, 0U);
  EXPECT_EQ(trace.tensors[1].dtype, NORIA_BFLOAT16);
  EXPECT_EQ(trace.bytes(), 26U);
  EXPECT_EQ(trace.arrival, (std::vector<uint32_t>{2, 1, 0}));
}

std::string refusal(const std::string& text) {
  try {
    parse_trace(text, "m.json");
  } catch (const ToolError& error) {
    EXPECT_EQ(error.code(), Exit::usage);
    return error.what();
  }
  return "";
}

// A file with one tensor of these fields, and these further fields of the file.
std::string refusal_of(const std::string& tensor, const std::string& more = "") {
  return refusal(R"({"name": "m", "tensors": [{)" + tensor + "}]" + more + "}");
}

TEST(Trace_file, Bad_files_are_refused_naming_file_tensor_and_field) {
  EXPECT_EQ(refusal(""), "m.json: not JSON at byte 1");
  EXPECT_EQ(refusal("{"), "m.json: not JSON at byte 2");
  EXPECT_EQ(refusal(R"({"name": 1e400})"), "m.json: a number is too large");
  EXPECT_EQ(refusal("[]"), "m.json: must be an object with name and tensors");
  EXPECT_EQ(refusal(R"({"tensors": []})"), "m.json: name is missing");
  EXPECT_EQ(refusal(R"({"name": "m"})"), "m.json: tensors is missing");
  EXPECT_EQ(refusal(R"({"name": "m", "tensors": []})"),
            "m.json: tensors must be a list that is not empty");
  EXPECT_EQ(refusal(R"({"name": "m", "tensors": [1]})"), "m.json: tensor 0: must be an object");
  EXPECT_EQ(refusal(R"({"name": "m", "tensors": [], "arival": []})"),
            "m.json: 'arival' is not a field here; known are arrival, name, tensors");
}

TEST(Trace_file, A_refusal_is_one_line_whatever_the_names_are) {
  EXPECT_EQ(refusal(R"({"name": "m", "a\nb": 1})"),
            "m.json: 'a?b' is not a field here; known are arrival, name, tensors");
  EXPECT_EQ(refusal_of(R"("name": "a\u001bb", "shape": 3)"),
            "m.json: tensor 0 'a?b': shape must be a list of whole numbers");
}

TEST(Trace_file, A_field_given_twice_is_refused_and_named) {
  EXPECT_EQ(refusal(R"({"name": "m", "name": "n", "tensors": []})"),
            "m.json: the field 'name' is given twice");
  EXPECT_EQ(refusal_of(R"("name": "a", "shape": [1], "dtype": "f32", "shape": [2])"),
            "m.json: the field 'shape' is given twice");
  // Expect: each object has fields of its own.
  EXPECT_EQ(parse_trace(kGood, "m.json").tensors.size(), 3U);
}

TEST(Trace_file, An_empty_file_is_a_bad_file_and_no_unknown_model) {
  try {
    load_trace("/dev/null");
    FAIL();
  } catch (const ToolError& error) {
    EXPECT_STREQ(error.what(), "/dev/null: not JSON at byte 1");
  }
}

TEST(Trace_file, Bad_tensors_are_refused_by_name_and_field) {
  EXPECT_EQ(refusal_of(R"("shape": [], "dtype": "f32")"), "m.json: tensor 0: name is missing");
  EXPECT_EQ(refusal_of(R"("name": 1)"), "m.json: tensor 0: name must be a text that is not empty");
  const std::string a = R"("name": "a", )";
  const std::string at = "m.json: tensor 0 'a': ";
  EXPECT_EQ(refusal_of(a + R"("dtype": "f32")"), at + "shape is missing");
  EXPECT_EQ(refusal_of(a + R"("shape": 3, "dtype": "f32")"),
            at + "shape must be a list of whole numbers");
  EXPECT_EQ(refusal_of(a + R"("shape": [2, -1], "dtype": "f32")"),
            at + "shape holds -1; extents are whole numbers from 0");
  EXPECT_EQ(refusal_of(a + R"("shape": [2.5], "dtype": "f32")"),
            at + "shape holds 2.5; extents are whole numbers from 0");
  EXPECT_EQ(refusal_of(a + R"("shape": [4294967296, 4294967296], "dtype": "f32")"),
            at + "shape is too large");
  EXPECT_EQ(refusal_of(a + R"("shape": [2])"), at + "dtype is missing");
  EXPECT_EQ(refusal_of(a + R"("shape": [2], "dtype": "f8")"),
            at + "dtype \"f8\" is not known; it takes i32, i64, f16, f32, f64, bf16");
  EXPECT_EQ(refusal_of(a + R"("shape": [2], "dtype": "f32", "ready_ms": -1)"),
            at + "ready_ms is -1; it takes 0 to 3600000");
  EXPECT_EQ(refusal_of(a + R"("shape": [2], "dtype": "f32", "ready": 1)"),
            at + "'ready' is not a field here; known are dtype, name, ready_ms, shape");
}

TEST(Trace_file, Tensors_and_arrival_must_agree) {
  const std::string a = R"("name": "a", "shape": [2], "dtype": "f32")";
  const std::string two = R"({"name": "m", "tensors": [{"name": "a", "shape": [2], "dtype": "f32"},
                             {"name": "b", "shape": [2], "dtype": "f32"}], "arrival": )";
  EXPECT_EQ(refusal_of(a + "}, {" + a), "m.json: tensor 1: the name 'a' was used before");
  EXPECT_EQ(refusal_of(a, R"(, "arrival": 3)"), "m.json: arrival: must be a list of indices");
  EXPECT_EQ(refusal_of(a, R"(, "arrival": [1])"),
            "m.json: arrival: 1 is not an index of a tensor; it takes 0 to 0");
  EXPECT_EQ(refusal(two + "[0, 0]}"), "m.json: arrival: tensor 0 comes twice");
  EXPECT_EQ(refusal(two + "[1]}"), "m.json: arrival: tensor 0 is missing");
  EXPECT_EQ(refusal_of(a + R"(, "ready_ms": 1}, {"name": "b", "shape": [], "dtype": "f32")"),
            "m.json: tensor 1 'b': ready_ms is missing, though others have it");
  EXPECT_EQ(refusal_of(a + R"(}, {"name": "b", "shape": [], "dtype": "f32", "ready_ms": 1)"),
            "m.json: tensor 1 'b': ready_ms is given, though tensor 0 has none");
  EXPECT_EQ(refusal_of(
                a + R"(, "ready_ms": 1}, {"name": "b", "shape": [], "dtype": "f32", "ready_ms": 2)",
                R"(, "arrival": [1, 0])"),
            "m.json: arrival: 'a' comes after 'b', but its ready_ms is less");
}

TEST(Ready_times, Without_times_a_tensor_takes_as_long_as_its_elements_and_2000) {
  Trace trace{.name = "m"};
  trace.tensors.push_back({.name = "first", .shape = {2000}, .numel = 2000});
  trace.tensors.push_back({.name = "last", .shape = {6000}, .numel = 6000});
  const ReadyTimes times = ready_times(trace, 120);
  // Reverse registration: 'last' (8000 of 12000), then 'first'.
  EXPECT_EQ(times.order, (std::vector<uint32_t>{1, 0}));
  EXPECT_DOUBLE_EQ(times.ready_ms[1], 80);
  EXPECT_DOUBLE_EQ(times.ready_ms[0], 120);
  EXPECT_DOUBLE_EQ(times.backward_ms, 120);
}

TEST(Ready_times, Embeddings_come_last_and_take_no_time) {
  const auto bert = make_trace("bert-base");
  const ReadyTimes times = ready_times(*bert, 100);
  ASSERT_EQ(times.order.size(), 199U);
  // The three embeddings, in reverse registration, after everything else.
  EXPECT_EQ(times.order[198], 0U);
  EXPECT_EQ(times.order[197], 1U);
  EXPECT_EQ(times.order[196], 2U);
  EXPECT_DOUBLE_EQ(times.ready_ms[times.order[195]], 100);
  EXPECT_DOUBLE_EQ(times.ready_ms[0], 100);
  EXPECT_TRUE(std::is_sorted(times.order.begin(), times.order.end(), [&](uint32_t a, uint32_t b) {
    return times.ready_ms[a] < times.ready_ms[b];
  }));
}

TEST(Ready_times, Microseconds_end_where_32_bits_do) {
  ReadyTimes times;
  times.ready_ms = {0, 1.5, 4294967.295, 1e7};
  EXPECT_EQ(ready_us(times), (std::vector<uint32_t>{0, 1500, UINT32_MAX, UINT32_MAX}));
}

TEST(Ready_times, The_tail_is_what_becomes_ready_last) {
  const auto bert = make_trace("bert-base");
  const Trace tail = tail_of(*bert, ready_times(*bert, 100));
  // The embeddings and the tensor whose end they wait for.
  ASSERT_EQ(tail.tensors.size(), 4U);
  EXPECT_EQ(tail.tensors[0].name, bert->tensors[0].name);
  EXPECT_EQ(tail.tensors[3].name, bert->tensors[3].name);
  // Expect: nothing of nothing.
  EXPECT_TRUE(tail_of({}, {}).tensors.empty());
}

TEST(Ready_times, Times_of_the_trace_are_kept_and_scaled_when_asked) {
  const Trace trace = parse_trace(kGood, "m.json");
  const ReadyTimes kept = ready_times(trace, std::nullopt);
  EXPECT_DOUBLE_EQ(kept.backward_ms, 3);
  EXPECT_DOUBLE_EQ(kept.ready_ms[1], 1.5);
  EXPECT_EQ(kept.order, (std::vector<uint32_t>{2, 1, 0}));
  const ReadyTimes scaled = ready_times(trace, 30);
  EXPECT_DOUBLE_EQ(scaled.ready_ms[0], 30);
  EXPECT_DOUBLE_EQ(scaled.ready_ms[1], 15);
}

TEST(Ready_times, Times_without_an_arrival_give_the_order) {
  Trace trace = parse_trace(kGood, "m.json");
  trace.arrival.clear();
  // b and c at 1.5 ms: reverse registration decides.
  EXPECT_EQ(ready_times(trace, std::nullopt).order, (std::vector<uint32_t>{2, 1, 0}));
  trace.tensors[0].ready_ms = 1;
  EXPECT_EQ(ready_times(trace, std::nullopt).order, (std::vector<uint32_t>{0, 2, 1}));
}

TEST(Ready_times, A_trace_that_weighs_nothing_is_ready_at_the_end) {
  Trace trace{.name = "m"};
  trace.tensors.push_back({.name = "wte.weight", .shape = {4}, .numel = 4});
  EXPECT_DOUBLE_EQ(ready_times(trace, 10).ready_ms[0], 10);
}

TEST(Ready_times, Full_buckets_wait_for_their_last_tensor_and_for_each_other) {
  EXPECT_DOUBLE_EQ(step_of_full_buckets({}), 0);
  // The second is ready before the first has gone, the third after.
  const std::vector<FullBucket> buckets{{10, 20}, {15, 5}, {50, 7}};
  EXPECT_DOUBLE_EQ(step_of_full_buckets(buckets), 57);
}

TEST(Embeddings, Are_known_by_a_part_of_their_name) {
  for (const char* name : {"wte.weight", "transformer.wpe.weight", "embed_tokens.weight",
                           "bert.embeddings.word.weight"})
    EXPECT_TRUE(is_embedding(name)) << name;
  for (const char* name : {"fc.weight", "encoder.pos_embedding", "wtes.weight", ""})
    EXPECT_FALSE(is_embedding(name)) << name;
}

}  // namespace
}  // namespace noria::perf

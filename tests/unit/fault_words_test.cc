#include <gtest/gtest.h>

#include "base/params.hpp"
#include "base/soft_faults.hpp"

namespace noria {
namespace {

using Object = SoftFault::Object;
using When = SoftFault::When;
using Count = SoftFault::Count;
using Action = SoftFault::Action;

std::string failure_of(const std::string& text) {
  const auto parsed = parse_soft_faults(text);
  return parsed.is_ok() ? "" : parsed.failure();
}

TEST(Soft_faults, Nothing_said_is_no_fault) {
  const auto faults = parse_soft_faults("");
  ASSERT_TRUE(faults.is_ok());
  EXPECT_TRUE(faults->rules.empty());
  EXPECT_EQ(faults->seed, 1U);
}

TEST(Soft_faults, Rules_are_read_in_order) {
  const auto faults = parse_soft_faults(
      "seed=7; qp=*: after msgs=100 do fail status=12; port=mlx0: after bytes=1M do down for=50ms;"
      "call=create_qp:every calls=3  do  fail errno=12 ;qp=3: about bytes=64K do lose for=200us;"
      "port=*: every msgs=1 do fatal");
  ASSERT_TRUE(faults.is_ok()) << faults.failure();
  EXPECT_EQ(faults->seed, 7U);
  ASSERT_EQ(faults->rules.size(), 5U);

  const SoftFault& fail = faults->rules[0];
  EXPECT_EQ(fail.object, Object::qp);
  EXPECT_EQ(fail.name, "*");
  EXPECT_EQ(fail.when, When::after);
  EXPECT_EQ(fail.count, Count::msgs);
  EXPECT_EQ(fail.limit, 100U);
  EXPECT_EQ(fail.action, Action::fail);
  EXPECT_EQ(fail.code, 12);

  const SoftFault& down = faults->rules[1];
  EXPECT_EQ(down.object, Object::port);
  EXPECT_EQ(down.name, "mlx0");
  EXPECT_EQ(down.count, Count::bytes);
  EXPECT_EQ(down.limit, 1_MiB);
  EXPECT_EQ(down.action, Action::down);
  EXPECT_EQ(down.duration_ns, 50_ms);

  const SoftFault& call = faults->rules[2];
  EXPECT_EQ(call.object, Object::call);
  EXPECT_EQ(call.name, "create_qp");
  EXPECT_EQ(call.when, When::every);
  EXPECT_EQ(call.count, Count::calls);
  EXPECT_EQ(call.code, 12);

  const SoftFault& lose = faults->rules[3];
  EXPECT_EQ(lose.name, "3");
  EXPECT_EQ(lose.when, When::about);
  EXPECT_EQ(lose.action, Action::lose);
  EXPECT_EQ(lose.duration_ns, 200_us);
  EXPECT_EQ(faults->rules[4].action, Action::fatal);
}

TEST(Soft_faults, A_rule_knows_whom_it_concerns) {
  const auto faults =
      parse_soft_faults("qp=2: after msgs=0 do mute for=1s; port=*: after msgs=0 do down");
  ASSERT_TRUE(faults.is_ok()) << faults.failure();
  EXPECT_TRUE(faults->rules[0].concerns("2"));
  EXPECT_FALSE(faults->rules[0].concerns("22"));
  EXPECT_TRUE(faults->rules[1].concerns("mlx0"));
  EXPECT_EQ(faults->rules[1].duration_ns, kNever) << "without 'for' it stays down";
}

TEST(Soft_faults, A_failure_names_part_word_and_what_is_accepted) {
  EXPECT_EQ(failure_of("seed=1; qp=*: afetr msgs=1 do fail status=12"),
            "part 2: 'afetr' is not a trigger; it takes after, every or about, and the nearest is "
            "'after'");
  EXPECT_EQ(failure_of("pq=*: after msgs=1 do fail status=12"),
            "part 1: 'pq' is not an object; it takes qp, port or call, and the nearest is 'qp'");
  EXPECT_EQ(failure_of("qp=*: after calls=1 do fail status=12"),
            "part 1: 'calls' is not a count; it takes msgs or bytes, and the nearest is 'msgs'");
  EXPECT_EQ(failure_of("call=reg_mr: after msgs=1 do fail errno=12"),
            "part 1: 'msgs' is not a count; it takes calls, and the nearest is 'calls'");
  EXPECT_EQ(failure_of("qp=*: every msgs=0 do fail status=12"),
            "part 1: 'msgs=0' is not accepted; it takes a number from 1 on, as 100 or 1M");
  EXPECT_EQ(failure_of("qp=0: after msgs=0 do fail status=12"),
            "part 1: 'qp=0' is not accepted; qp takes * or a number from 1 on");
  EXPECT_EQ(failure_of("port=../a: after msgs=0 do down"),
            "part 1: 'port=../a' is not accepted; port takes * or a device's name");
  EXPECT_EQ(failure_of("qp=*: after msgs=1 do fial status=12"),
            "part 1: 'fial' is not an action; it takes fail, lose, mute, down or fatal, and the "
            "nearest is 'fail'");
  EXPECT_EQ(failure_of("qp=*: after msgs=1 do fail status=99"),
            "part 1: 'status=99' is not accepted; fail takes status=1 to 22");
  EXPECT_EQ(failure_of("call=reg_mr: after calls=1 do fail status=12"),
            "part 1: 'status=12' is not accepted; fail takes errno=1 to 133");
  EXPECT_EQ(failure_of("qp=*: after msgs=1 do lose"),
            "part 1: '' is not accepted; it takes for=50ms, from 1us to 3600s");
  EXPECT_EQ(failure_of("port=*: after msgs=1 do down for=2h"),
            "part 1: 'for=2h' is not accepted; it takes for=50ms, from 1us to 3600s");
  EXPECT_EQ(failure_of("port=*: after msgs=1 do fatal for=2s"),
            "part 1: 'for=2s' is not accepted; fatal stands alone");
  EXPECT_EQ(failure_of("qp=*: after msgs=1 do down"),
            "part 1: qp cannot do 'down'; a qp can fail, lose or mute, a port go down or fatal, a "
            "call fail");
  EXPECT_EQ(failure_of("qp=*: after msgs=1 fail status=12"),
            "part 1: 'fail' stands where 'do' and an action belong");
  EXPECT_EQ(failure_of("down"),
            "part 1: 'down' is no rule, as qp=*: after msgs=100 do fail status=12");
  EXPECT_EQ(failure_of("seed=1;seed=2"), "part 2: 'seed' stands twice");
  EXPECT_EQ(failure_of("seed=x"), "part 1: 'seed=x' is not accepted; it takes a number");
}

TEST(Soft_faults, Blanks_behind_the_last_semicolon_are_no_part) {
  EXPECT_EQ(failure_of("seed=1; qp=*: after msgs=1 do lose for=1s; "), "");
  EXPECT_EQ(failure_of("  "), "");
}

TEST(Soft_faults, A_call_that_cannot_fail_is_refused_with_those_that_can) {
  EXPECT_EQ(failure_of("call=crate_qp: after calls=1 do fail errno=12"),
            "part 1: 'crate_qp' is not a call that can fail; it takes alloc_pd, reg_mr, "
            "create_comp_channel, create_cq, create_srq, create_qp, modify_qp, post_send, "
            "post_recv or req_notify_cq, and the nearest is 'create_qp'");
}

TEST(Soft_faults, Numbers_and_times_are_read_whole) {
  for (const char* bad :
       {"qp=*: after msgs=1x do fail status=12", "qp=*: after msgs=-1 do fail status=12",
        "qp=*: after msgs do fail status=12", "qp=*: after msgs=1 do lose for=0ms",
        "qp=*: after msgs=1 do lose for=3601s", "qp=*: after msgs=1 do lose for=1.5ms",
        "qp=*: after msgs=1 do lose for=50", "qp=*: after msgs=1 do lose for=1ms for=2ms",
        "qp=*: after msgs=1 do fail status=0", "qp=*: after bytes=2000000000G do lose for=1s", ";",
        ";;seed=1", "qp=*:", "qp: after msgs=1 do lose for=1s"})
    EXPECT_NE(failure_of(bad), "") << bad;
}

TEST(Soft_faults, There_is_room_for_64_rules) {
  std::string text = "seed=3";
  for (int i = 0; i < 64; ++i) text += "; qp=*: after msgs=1 do lose for=1s";
  EXPECT_EQ(failure_of(text), "");
  EXPECT_EQ(failure_of(text + "; qp=*: after msgs=1 do lose for=1s"),
            "part 66: there is room for 64 rules");
}

TEST(Soft_faults, The_environment_is_refused_with_the_name_of_the_variable) {
  const char* environment[] = {"NORIA_SOFT_FAULTS=qp=*: after msgs=1 do drop", nullptr};
  const auto params = load_params(environment);
  ASSERT_FALSE(params.is_ok());
  EXPECT_EQ(params.failure().find("NORIA_SOFT_FAULTS: part 1: 'drop' is not an action"), 0U)
      << params.failure();
}

TEST(Soft_faults, A_port_must_be_one_of_the_devices) {
  const char* environment[] = {
      "NORIA_SOFT_FAULTS=seed=1; port=*: after msgs=1 do down; port=mlx2: after msgs=1 do down",
      "NORIA_SOFT_DEVICES=name=eth0;name=mlx1", nullptr};
  const auto params = load_params(environment);
  ASSERT_FALSE(params.is_ok());
  EXPECT_EQ(params.failure(),
            "NORIA_SOFT_FAULTS: part 3: 'port=mlx2' is none of the devices; the nearest is 'mlx1'");
  // Without a description.  Expect: the one that there is.
  const char* plain[] = {"NORIA_SOFT_FAULTS=port=noria0: after msgs=1 do down", nullptr};
  EXPECT_TRUE(load_params(plain).is_ok());
}

}  // namespace
}  // namespace noria

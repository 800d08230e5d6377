#include "tests/support/seed_plan.hpp"

#include <infiniband/verbs.h>

#include <cstdlib>

namespace noria::test {
namespace {

using Words = std::array<const char*, 3>;

std::string number(uint64_t value) { return std::to_string(value); }

std::string time_text(Draw& draw) {
  return draw.one_in(2) ? number(draw.between(100, 9000)) + "us"
                        : number(draw.between(1, 150)) + "ms";
}

std::string trigger(Draw& draw) {
  const std::string when = draw.of(Words{"after", "every", "about"});
  const std::string count = draw.one_in(3) ? " bytes=" + number(draw.between(500, 90000))
                                           : " msgs=" + number(draw.between(2, 50));
  return when + count + " do ";
}

std::string qp_rule(Draw& draw, SeedPlan& plan) {
  const std::string which = draw.one_in(2) ? "*" : number(draw.between(1, plan.pairs_per_rail * 4));
  std::string rule = "qp=" + which + ": " + trigger(draw);
  if (!draw.one_in(3)) return rule + (draw.one_in(2) ? "lose" : "mute") + " for=" + time_text(draw);
  constexpr std::array<ibv_wc_status, 5> kStatuses{IBV_WC_LOC_QP_OP_ERR, IBV_WC_REM_INV_REQ_ERR,
                                                   IBV_WC_REM_OP_ERR, IBV_WC_RETRY_EXC_ERR,
                                                   IBV_WC_GENERAL_ERR};
  const auto status = static_cast<uint32_t>(draw.of(kStatuses));
  plan.statuses |= 1u << status;
  return rule + "fail status=" + number(status);
}

std::string port_rule(Draw& draw) {
  constexpr std::array<const char*, 5> kPorts{"*", "a0", "b0", "a1", "b1"};
  const std::string port = draw.of(kPorts);
  std::string rule = "port=" + port + ": " + trigger(draw);
  if (draw.one_in(8)) return rule + "fatal";
  return rule + (draw.one_in(6) ? std::string("down") : "down for=" + time_text(draw));
}

std::string call_rule(Draw& draw) {
  const std::string call = draw.of(Words{"post_send", "post_recv", "modify_qp"});
  const std::string when = draw.one_in(2) ? "after" : "every";
  return "call=" + call + ": " + when + " calls=" + number(draw.between(2, 40)) +
         " do fail errno=" + number(draw.one_in(2) ? 12 : 11);
}

void add_rule(Draw& draw, SeedPlan& plan) {
  const uint64_t kind = draw.below(6);
  const std::string rule = kind < 3   ? qp_rule(draw, plan)
                           : kind < 5 ? port_rule(draw)
                                      : call_rule(draw);
  plan.faults += (plan.faults.empty() ? "seed=" + number(draw.below(1000)) + "; " : "; ") + rule;
  // What is lost, and who asks a queue pair that has ended, runs out of retries.
  plan.statuses |= 1u << IBV_WC_RETRY_EXC_ERR;
}

}  // namespace

SeedPlan draw_plan(Draw& draw) {
  SeedPlan plan;
  plan.pairs_per_rail = draw.between(1, 3);
  plan.rounds = draw.between(40, 120);
  plan.place = draw.one_in(2) ? "late" : "early";
  const bool is_shaped = draw.one_in(4);
  plan.rate_gbit = is_shaped ? number(draw.between(1, 100)) : "0";
  plan.latency_us = is_shaped ? number(draw.below(50)) : "0";
  plan.shares_queues = draw.one_in(2);
  plan.maps_memory = draw.one_in(2);
  plan.ack_timeout = static_cast<uint8_t>(draw.between(8, 13));
  plan.retry_count = static_cast<uint8_t>(draw.below(4));
  for (uint64_t rules = draw.below(4); rules > 0; --rules) add_rule(draw, plan);
  if (draw.one_in(6)) {
    plan.rnr_retry = static_cast<uint8_t>(draw.below(4));
    plan.statuses |= 1u << IBV_WC_RNR_RETRY_EXC_ERR | 1u << IBV_WC_RETRY_EXC_ERR;
  }
  plan.has_bad_keys = draw.one_in(6);
  if (plan.has_bad_keys) plan.statuses |= 1u << IBV_WC_REM_ACCESS_ERR | 1u << IBV_WC_RETRY_EXC_ERR;
  return plan;
}

void set_world(const SeedPlan& plan) {
  const auto set = [](const char* name, const std::string& value) {
    ::setenv(name, value.c_str(), 1);
  };
  set("NORIA_SOFT_DEVICES", kSeedDevices);
  set("NORIA_SOFT_PLACE", plan.place);
  set("NORIA_SOFT_RATE_GBIT", plan.rate_gbit);
  set("NORIA_SOFT_LATENCY_US", plan.latency_us);
  set("NORIA_SOFT_FAULTS", plan.faults);
  set("NORIA_DEBUG", "none");
}

}  // namespace noria::test

// Who belongs to which unique id, in this process and in others.
#include <algorithm>
#include <cstdlib>

#include "tests/support/cuda_standin/communicator.hpp"
#include "tests/support/cuda_standin/nccl.hpp"
#include "tests/support/cuda_standin/say.hpp"

namespace noria::standin {

namespace {

using WorldRef = std::shared_ptr<World>;

// Those that are not complete.
std::map<std::pair<uint64_t, uint64_t>, WorldRef>& worlds() {
  static auto& all = *new std::map<std::pair<uint64_t, uint64_t>, WorldRef>;
  return all;
}

// As NCCL tells hosts apart: processes of one have all of it in common, or a name of their own.
std::string host_name() {
  const char* const named = std::getenv("NCCL_HOSTID");
  return named == nullptr ? "" : named;
}

// Null: it is of another size, or has that rank.
WorldRef find_world(const WorldId& id, size_t ranks, size_t rank) {
  WorldRef& world = worlds()[{id.address, id.number}];
  if (world == nullptr) {
    world = std::make_shared<World>();
    world->address = id.address;
    world->number = id.number;
    world->members.resize(ranks);
    world->places.resize(ranks);
  }
  const bool is_free =
      world->places.size() == ranks && rank < ranks && !world->places[rank].is_taken;
  return is_free ? world : nullptr;
}

// Of a world that is complete no two ranks share a device of a host.
void form(const WorldRef& world) {
  worlds().erase({world->address, world->number});
  for (size_t a = 0; a < world->places.size(); ++a)
    for (size_t b = a + 1; b < world->places.size(); ++b) {
      const Place& one = world->places[a];
      const Place& other = world->places[b];
      if (one.host == other.host && one.device == other.device)
        fail_members(*world, kNcclInvalidUsage,
                     say("Duplicate GPU detected: rank %zu and rank %zu both on device %d", a, b,
                         one.device));
    }
}

void take_place(const WorldRef& world, size_t rank, Place place) {
  place.is_taken = true;
  world->places[rank] = std::move(place);
  if (++world->joined == world->places.size()) form(world);
  Machine::instance().changed.notify_all();
}

Word hello_of(const World& world, size_t rank) {
  const Place& place = world.places[rank];
  return {.kind = WordKind::hello,
          .rank = static_cast<uint32_t>(rank),
          .ranks = static_cast<uint32_t>(world.places.size()),
          .device = place.device,
          .world = world.number,
          .is_makers = place.is_makers,
          .is_allowed = false,
          .part = {},
          .bytes = 0};
}

void lose(const World& world, size_t rank) {
  fail_members(world, kNcclRemoteError,
               say("rank %zu's process ended without leaving the communicator", rank));
}

// A rank of another process joins by this line, which may be new.
bool meet(Line& line, const Word& word, std::string_view host) {
  const bool is_new = line.world == nullptr;
  const WorldId id = is_new ? WorldId{Exchange::instance().address(), word.world}
                            : WorldId{line.world->address, line.world->number};
  const WorldRef world = find_world(id, word.ranks, word.rank);
  if (world == nullptr || (!is_new && world != line.world)) return false;
  const std::shared_ptr<Line> held = line.shared_from_this();
  if (is_new) {
    line.world = world;
    world->lines.push_back(held);
    for (size_t rank = 0; rank < world->places.size(); ++rank)
      if (const Place& known = world->places[rank]; known.is_taken)
        Exchange::say_to(line, wire_bytes(hello_of(*world, rank), known.host));
  }
  take_place(world, word.rank,
             {.is_taken = true,
              .host = std::string(host),
              .device = word.device,
              .is_makers = word.is_makers,
              .line = held,
              .has_left = false});
  return true;
}

}  // namespace

CommunicatorRef join(const WorldId& id, size_t ranks, size_t rank, Context* context, int* code) {
  Exchange& exchange = Exchange::instance();
  *code = kNcclInvalidArgument;
  const WorldRef world = find_world(id, ranks, rank);
  if (world == nullptr) return nullptr;
  const bool is_makers = exchange.is_own(id.address);
  if (!is_makers && world->lines.empty()) {
    const std::shared_ptr<Line> line = exchange.call(id.address);
    *code = kNcclSystemError;
    if (line == nullptr) return nullptr;
    line->world = world;
    world->lines.push_back(line);
  }
  auto made = std::make_shared<Communicator>();
  made->world = world;
  made->rank = rank;
  made->context = context;
  world->members[rank] = made;
  communicators()[made.get()] = made;
  take_place(world, rank,
             {.is_taken = true,
              .host = host_name(),
              .device = context->device,
              .is_makers = is_makers,
              .line = nullptr,
              .has_left = false});
  exchange.say(*world, hello_of(*world, rank), world->places[rank].host);
  *code = kNcclSuccess;
  return made;
}

void leave(const CommunicatorRef& communicator, std::unique_lock<std::mutex>* lock) {
  World& world = *communicator->world;
  world.members[communicator->rank] = nullptr;
  world.places[communicator->rank].has_left = true;
  communicator->launched.clear();
  communicator->begun.clear();
  Exchange::instance().say(
      world, {.kind = WordKind::left, .rank = static_cast<uint32_t>(communicator->rank)}, "");
  Exchange::flush(world, lock);
  const bool is_last = std::all_of(world.members.begin(), world.members.end(),
                                   [](const auto& member) { return member == nullptr; });
  // The id's maker goes on passing words on.
  if (!is_last || Exchange::instance().is_own(world.address)) return;
  for (const std::shared_ptr<Line>& line : world.lines) line->is_leaving = true;
  world.lines.clear();
}

void fail_members(const World& world, int code, const std::string& text) {
  for (const CommunicatorRef& member : world.members) {
    if (member == nullptr || member->async_error != 0) continue;
    member->async_error = code;
    member->last_error = text;
  }
  Machine::instance().changed.notify_all();
}

bool hear(Line& line, const Word& word, std::string_view payload) {
  if (word.kind == WordKind::hello) {
    if (!meet(line, word, payload)) return false;
  } else {
    if (line.world == nullptr || word.rank >= line.world->places.size()) return false;
    switch (word.kind) {
      case WordKind::hello: break;
      case WordKind::arrival:
        if (!fits(word, payload.size(), line.world->places.size())) return false;
        come(line.world.get(), word.rank,
             {.operation = nullptr,
              .part = word.part,
              .is_allowed = word.is_allowed,
              .given = std::string(payload)});
        Machine::instance().poke();
        break;
      case WordKind::left: line.world->places[word.rank].has_left = true; break;
      case WordKind::lost: lose(*line.world, word.rank); break;
    }
  }
  Exchange::instance().say(*line.world, word, payload, &line);
  return true;
}

void hang_up(const std::shared_ptr<Line>& line) {
  const WorldRef world = std::exchange(line->world, nullptr);
  if (world == nullptr) return;
  std::erase(world->lines, line);
  const auto is_there = [&](const Place& place) {
    return place.is_taken && place.line == line && !place.has_left;
  };
  // What the maker's process only passed on may live: it has done its part.
  const bool is_to_maker = !Exchange::instance().is_own(world->address);
  const bool is_over = is_to_maker && std::none_of(world->places.begin(), world->places.end(),
                                                   [&](const Place& place) {
                                                     return is_there(place) && place.is_makers;
                                                   });
  for (size_t rank = 0; rank < world->places.size(); ++rank) {
    if (!is_there(world->places[rank]) || is_over) continue;
    lose(*world, rank);
    Exchange::instance().say(*world, {.kind = WordKind::lost, .rank = static_cast<uint32_t>(rank)},
                             "");
  }
  for (Place& place : world->places)
    if (place.line == line) place.line = nullptr;
}

}  // namespace noria::standin

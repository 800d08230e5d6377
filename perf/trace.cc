#include "perf/trace.hpp"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/params.hpp"
#include "perf/elements.hpp"
#include "perf/exit_codes.hpp"

namespace noria::perf {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMostBytes = uint64_t{1} << 50;  // of one trace; sums stay far from overflow

// Where in the file a value stands, for the text of a failure.
class Place {
 public:
  explicit Place(std::string file) : text_(std::move(file)) {}
  Place in(const std::string& part) const { return Place(text_ + ": " + part); }
  [[noreturn]] void refuse(const std::string& why) const { throw usage_error(text_ + ": " + why); }

 private:
  std::string text_;
};

// JSON whose objects name each field once: of two, a reader would use either.
Json parse_json(const std::string& text, const Place& place) {
  std::vector<std::set<std::string>> open;
  const auto look = [&](int, Json::parse_event_t event, const Json& parsed) {
    if (event == Json::parse_event_t::object_start) open.emplace_back();
    if (event == Json::parse_event_t::object_end) open.pop_back();
    if (event == Json::parse_event_t::key && !open.back().insert(parsed.get<std::string>()).second)
      place.refuse("the field '" + parsed.get<std::string>() + "' is given twice");
    return true;
  };
  try {
    return Json::parse(text, look);
  } catch (const Json::parse_error& error) {
    place.refuse("not JSON at byte " + std::to_string(error.byte));
  } catch (const Json::out_of_range&) {
    place.refuse("a number is too large");
  }
}

void only_fields(const Json& json, const std::set<std::string>& known, const Place& place) {
  for (const auto& [key, value] : json.items()) {
    if (known.contains(key)) continue;
    std::string list;
    for (const std::string& name : known) list += (list.empty() ? "" : ", ") + name;
    place.refuse("'" + key + "' is not a field here; known are " + list);
  }
}

const Json& field(const Json& json, const char* name, const Place& place) {
  const auto found = json.find(name);
  if (found == json.end()) place.refuse(std::string(name) + " is missing");
  return *found;
}

std::string name_field(const Json& json, const Place& place) {
  const Json& value = field(json, "name", place);
  if (!value.is_string() || value.get_ref<const std::string&>().empty())
    place.refuse("name must be a text that is not empty");
  return value.get<std::string>();
}

noria_dtype dtype_field(const Json& json, const Place& place) {
  const Json& value = field(json, "dtype", place);
  std::string known;
  for (const DtypeRow& row : kDtypes) {
    if (value.is_string() && value.get_ref<const std::string&>() == row.trace_name)
      return row.dtype;
    known += std::string(known.empty() ? "" : ", ") + row.trace_name;
  }
  place.refuse("dtype " + value.dump() + " is not known; it takes " + known);
}

TraceTensor parse_tensor(const Json& json, size_t index, const Place& file) {
  const Place by_index = file.in("tensor " + std::to_string(index));
  if (!json.is_object()) by_index.refuse("must be an object");
  TraceTensor tensor{.name = name_field(json, by_index)};
  const Place place = file.in("tensor " + std::to_string(index) + " '" + tensor.name + "'");
  only_fields(json, {"name", "shape", "dtype", "ready_ms"}, place);

  const Json& shape = field(json, "shape", place);
  if (!shape.is_array()) place.refuse("shape must be a list of whole numbers");
  for (const Json& extent : shape) {
    if (!extent.is_number_integer() || extent.get<int64_t>() < 0)
      place.refuse("shape holds " + extent.dump() + "; extents are whole numbers from 0");
    tensor.shape.push_back(extent.get<int64_t>());
    const auto by = static_cast<uint64_t>(tensor.shape.back());
    if (by != 0 && tensor.numel > kMostBytes / by) place.refuse("shape is too large");
    tensor.numel *= by;
  }
  tensor.dtype = dtype_field(json, place);

  if (const auto ready = json.find("ready_ms"); ready != json.end()) {
    if (!ready->is_number() || !(ready->get<double>() >= 0) || !(ready->get<double>() <= 3.6e6))
      place.refuse("ready_ms is " + ready->dump() + "; it takes 0 to 3600000");
    tensor.ready_ms = ready->get<double>();
  }
  return tensor;
}

std::vector<uint32_t> parse_arrival(const Json& json, size_t tensors, const Place& file) {
  const Place place = file.in("arrival");
  if (!json.is_array()) place.refuse("must be a list of indices");
  std::vector<uint32_t> arrival;
  std::vector<bool> seen(tensors);
  for (const Json& entry : json) {
    if (!entry.is_number_unsigned() || entry.get<uint64_t>() >= tensors)
      place.refuse(entry.dump() + " is not an index of a tensor; it takes 0 to " +
                   std::to_string(tensors - 1));
    const auto index = entry.get<uint32_t>();
    if (seen[index]) place.refuse("tensor " + std::to_string(index) + " comes twice");
    seen[index] = true;
    arrival.push_back(index);
  }
  for (size_t i = 0; i < tensors; ++i)
    if (!seen[i]) place.refuse("tensor " + std::to_string(i) + " is missing");
  return arrival;
}

// Times of all tensors or of none, and in the order of arrival where that is given too.
void check_times(const Trace& trace, const Place& file) {
  const bool timed = trace.tensors.front().ready_ms.has_value();
  for (size_t i = 0; i < trace.tensors.size(); ++i)
    if (trace.tensors[i].ready_ms.has_value() != timed)
      file.in("tensor " + std::to_string(i) + " '" + trace.tensors[i].name + "'")
          .refuse(timed ? "ready_ms is missing, though others have it"
                        : "ready_ms is given, though tensor 0 has none");
  if (!timed) return;
  for (size_t i = 1; i < trace.arrival.size(); ++i) {
    const TraceTensor& before = trace.tensors[trace.arrival[i - 1]];
    const TraceTensor& tensor = trace.tensors[trace.arrival[i]];
    if (*tensor.ready_ms < *before.ready_ms)
      file.in("arrival").refuse("'" + tensor.name + "' comes after '" + before.name +
                                "', but its ready_ms is less");
  }
}

}  // namespace

uint64_t Trace::numel() const {
  uint64_t sum = 0;
  for (const TraceTensor& tensor : tensors) sum += tensor.numel;
  return sum;
}

uint64_t Trace::bytes() const {
  uint64_t sum = 0;
  for (const TraceTensor& tensor : tensors) sum += tensor.numel * dtype_row(tensor.dtype).bytes;
  return sum;
}

Trace parse_trace(const std::string& text, const std::string& file) {
  const Place place(file);
  const Json json = parse_json(text, place);
  if (!json.is_object()) place.refuse("must be an object with name and tensors");
  only_fields(json, {"name", "tensors", "arrival"}, place);
  Trace trace{.name = name_field(json, place)};
  const Json& tensors = field(json, "tensors", place);
  if (!tensors.is_array() || tensors.empty())
    place.refuse("tensors must be a list that is not empty");
  std::set<std::string> names;
  for (size_t i = 0; i < tensors.size(); ++i) {
    trace.tensors.push_back(parse_tensor(tensors[i], i, place));
    if (!names.insert(trace.tensors[i].name).second)
      place.in("tensor " + std::to_string(i))
          .refuse("the name '" + trace.tensors[i].name + "' was used before");
  }
  if (trace.bytes() > kMostBytes) place.refuse("the tensors are too large");
  if (const auto arrival = json.find("arrival"); arrival != json.end())
    trace.arrival = parse_arrival(*arrival, trace.tensors.size(), place);
  check_times(trace, place);
  return trace;
}

Trace load_trace(const std::string& name_or_path) {
  if (auto trace = make_trace(name_or_path)) return *std::move(trace);
  std::ifstream file(name_or_path);
  std::ostringstream text;
  const bool has_text = file && text << file.rdbuf();
  const bool is_empty = file && file.peek() == EOF && !file.bad();  // and not a folder
  if (has_text || is_empty) return parse_trace(text.str(), name_or_path);
  std::string nearest;
  size_t least = SIZE_MAX;
  for (const std::string& name : trace_names())
    if (const size_t distance = edit_distance(name_or_path, name); distance < least) {
      least = distance;
      nearest = name;
    }
  throw usage_error(
      "--trace: '" + name_or_path +
      "' is neither a known model nor a file that can be read; the nearest model is " + nearest);
}

bool is_embedding(std::string_view tensor_name) {
  while (true) {
    const size_t dot = tensor_name.find('.');
    const std::string_view part = tensor_name.substr(0, dot);
    if (part.starts_with("embed") || part == "wte" || part == "wpe") return true;
    if (dot == std::string_view::npos) return false;
    tensor_name.remove_prefix(dot + 1);
  }
}

}  // namespace noria::perf

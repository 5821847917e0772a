#include "simulation/names.h"

#include <deque>
#include <limits>
#include <mutex>
#include <unordered_map>

namespace neuron {
namespace {

struct Table {
  std::mutex mutex;
  std::deque<std::string> texts{"(unknown)"}; // a deque: the map's keys point into it
  std::unordered_map<std::string_view, Name> numbers;
  std::function<void(Name, const std::string&)> told;
};

Table& table() {
  static auto* made = new Table; // used while the process ends
  return *made;
}

} // namespace

Name name_of(std::string_view text) {
  Table& t = table();
  std::lock_guard<std::mutex> lock(t.mutex);
  const auto found = t.numbers.find(text);
  if (found != t.numbers.end()) {
    return found->second;
  }
  if (t.texts.size() >= std::numeric_limits<Name>::max()) {
    return 0;
  }
  const auto number = static_cast<Name>(t.texts.size());
  t.texts.emplace_back(text);
  t.numbers.emplace(t.texts.back(), number);
  if (t.told) {
    t.told(number, t.texts.back());
  }
  return number;
}

std::string text_of(Name name) {
  Table& t = table();
  std::lock_guard<std::mutex> lock(t.mutex);
  return name < t.texts.size() ? t.texts[name] : t.texts[0];
}

std::vector<std::string> executed() {
  Table& t = table();
  std::lock_guard<std::mutex> lock(t.mutex);
  std::vector<std::string> names;
  for (size_t i = 1; i < t.texts.size(); ++i) {
    if (executed_names[i].load(std::memory_order_relaxed)) {
      names.push_back(t.texts[i]);
    }
  }
  return names;
}

void clear_executed() {
  for (auto& name : executed_names) {
    name.store(false, std::memory_order_relaxed);
  }
}

void tell_names(std::function<void(Name, const std::string&)> told) {
  Table& t = table();
  std::lock_guard<std::mutex> lock(t.mutex);
  t.told = std::move(told);
  if (t.told) {
    for (size_t i = 0; i < t.texts.size(); ++i) {
      t.told(static_cast<Name>(i), t.texts[i]);
    }
  }
}

} // namespace neuron

#include "job/timeline.h"

namespace tessera::job {
namespace {

constexpr int64_t kWork = 0, kMessages = 1;

using nlohmann::ordered_json;

}  // namespace

Timeline::Timeline(int64_t rank) : rank_(rank) {
  const auto name = [&](const char* what, int64_t track, const std::string& text) {
    events_.push_back(
        {{"name", what}, {"ph", "M"}, {"pid", rank_}, {"tid", track}, {"args", {{"name", text}}}});
  };
  name("process_name", kWork, fmt::format("rank {}", rank_));
  name("thread_name", kWork, "work");
  name("thread_name", kMessages, "messages");
}

void Timeline::add(const std::string& name, int64_t track, Clock::time_point begin, Clock::time_point end,
                   ordered_json arguments) {
  const auto microseconds = [](Clock::duration time) {
    return std::chrono::duration<double, std::micro>(time).count();
  };
  events_.push_back({{"name", name},
                     {"ph", "X"},
                     {"pid", rank_},
                     {"tid", track},
                     {"ts", microseconds(begin - zero_)},
                     {"dur", microseconds(end - begin)},
                     {"args", std::move(arguments)}});
}

void Timeline::add_collective(const comm::Collective& collective, std::chrono::nanoseconds under_way,
                              std::chrono::nanoseconds waited) {
  const auto now = Clock::now();
  const std::string name = fmt::format("{} ({})", collective.name, collective.axis);
  add(name, kMessages, now - under_way, now, {{"bytes", collective.bytes}});
  add("wait: " + name, kWork, now - waited, now, ordered_json::object());
}

void Timeline::add_compute(int64_t step, int64_t first_patch, int64_t patches, Clock::time_point begin,
                           Clock::time_point end) {
  const std::string which =
      patches == 1 ? fmt::format("patch {}", first_patch) : fmt::format("{} patches", patches);
  add(fmt::format("step {}, {}", step, which), kWork, begin, end, {{"step", step}});
}

void Timeline::add_phase(engine::Phase phase, double seconds) {
  if (phase == engine::Phase::kDenoise) return;  // its steps are already recorded
  const auto now = Clock::now();
  const auto duration = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  add(engine::phase_name(phase), kWork, now - duration, now, ordered_json::object());
}

}  // namespace tessera::job

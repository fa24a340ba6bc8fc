#include "core/units.h"

#include <fmt/format.h>

namespace tessera {

std::string count_text(uint64_t count) {
  const auto value = static_cast<double>(count);
  if (count < 1000) return fmt::format("{}", count);
  if (value < 1e6) return fmt::format("{:.1f} K", value / 1e3);
  if (value < 1e9) return fmt::format("{:.1f} M", value / 1e6);
  if (value < 1e12) return fmt::format("{:.2f} G", value / 1e9);
  if (value < 1e15) return fmt::format("{:.2f} T", value / 1e12);
  return fmt::format("{:.2f} P", value / 1e15);
}

std::string bytes_text(uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (value < 1 << 20) return fmt::format("{:.1f} KiB", value / 1024);
  if (value < 1 << 30) return fmt::format("{:.1f} MiB", value / (1 << 20));
  if (value < 1024.0 * (1 << 30)) return fmt::format("{:.2f} GiB", value / (1 << 30));
  return fmt::format("{:.2f} TiB", value / (1024.0 * (1 << 30)));
}

std::string milliseconds_text(double seconds) {
  const double value = seconds * 1e3;
  return value >= 100 ? fmt::format("{:.0f}", value) : fmt::format("{:.3g}", value);
}

std::string seconds_text(double seconds) {
  return seconds >= 1000 ? fmt::format("{:.0f}", seconds) : fmt::format("{:.4g}", seconds);
}

}  // namespace tessera

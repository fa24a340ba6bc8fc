// Names of jobs.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "core/text.h"

namespace tessera::serve {

// Points in time that outlive a process.
using WallTime = std::chrono::sys_time<std::chrono::milliseconds>;

// Fills all the bytes.
using RandomBytes = std::function<void(std::span<std::byte>)>;

// Returns a new id: 10 characters from `now`, by which ids sort, and 26 from 128 random bits, so that nobody
// can guess the id of somebody else's job. All are digits and lowercase letters other than i, l, o and u.
std::string new_job_id(WallTime now, const RandomBytes& random = random_bytes);

// Whether a text has the form of an id, and can thus be part of a file name.
bool is_job_id(std::string_view text);

}  // namespace tessera::serve

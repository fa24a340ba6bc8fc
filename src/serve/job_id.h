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

// Fills all of the bytes.
using RandomBytes = std::function<void(std::span<std::byte>)>;

// Returns a new id: 10 characters of `now`, by which ids sort, and 26 of 128 random bits, so that nobody
// guesses the id of a job that is not his. All are digits and small letters, without i, l, o and u.
std::string new_job_id(WallTime now, const RandomBytes& random = random_bytes);

// Whether a text has the form of an id, so that it can be part of a file's name.
bool is_job_id(std::string_view text);

}  // namespace tessera::serve

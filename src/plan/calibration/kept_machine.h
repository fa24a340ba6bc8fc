// Keeps what was measured of this host for plans of runs, so that it is measured once.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "core/json.h"
#include "plan/calibration/calibrate.h"
#include "plan/machine.h"

namespace tessera::plan {

// All that a calibration of this host depends on: the processor and its instruction set, the cores of this
// process, the threads and the number of ranks, the dtypes, this program.
Json host_key(const CalibrationOptions& options);
// The file for it, or nothing where there is no folder for what is kept.
std::optional<std::filesystem::path> kept_machine_path(const Json& key);

// Returns the kept machine of this host. Where there is none, or none that is whole and of this key,
// `measure` makes one, a machine file as calibrate() writes it, which is kept: whole or not at all. A
// second process waits meanwhile for what the first one keeps. `say` gets a line on all of that but a machine
// that is there. Throws what `measure` throws.
Machine machine_of_host(const CalibrationOptions& options, const std::function<OrderedJson()>& measure,
                        const Say& say);

}  // namespace tessera::plan

// Keeps measurements of this host for plans of runs, so that it is measured only once.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "core/json.h"
#include "plan/calibration/calibrate.h"
#include "plan/machine.h"

namespace tessera::plan {

// Everything that a calibration of this host depends on: the processor and its instruction set, the cores of
// this process, the threads and the number of ranks, the dtypes, this program.
Json host_key(const CalibrationOptions& options);
// The file for it, or nothing if there is no folder for kept files.
std::optional<std::filesystem::path> kept_machine_path(const Json& key);

// Returns the kept machine of this host. If there is none with this key that is complete, `measure` makes
// one, a machine file as calibrate() writes it, which is kept entirely or not at all. A second process waits
// for the result of the first. `say` gets a line about all this, unless the machine was already there. Throws
// what `measure` throws.
Machine machine_of_host(const CalibrationOptions& options, const std::function<OrderedJson()>& measure,
                        const Say& say);

}  // namespace tessera::plan

// Standard output, which must arrive, and standard error, which may be lost.
#pragma once

#include <string>

namespace tessera::launch {

// Opens /dev/null for standard streams that the caller has closed. Otherwise a file that is opened later
// would get their number, and messages would end up in it.
void open_missing_streams();

// Writes to standard error and ignores failures: a full or closed one must not end a run.
void say(const std::string& text);

// Flushes standard output. Throws Error(kUsage) if not all of it could be written.
void flush_output();

}  // namespace tessera::launch

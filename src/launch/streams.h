// Standard output, which must arrive, and standard error, which may get lost.
#pragma once

#include <string>

namespace tessera::launch {

// Opens /dev/null in place of standard streams that the caller closed: a file that is opened later would get
// their number, and messages would end up in it.
void open_missing_streams();

// Writes to standard error as well as that goes: a full or closed one must not end a run.
void say(const std::string& text);

// Writes what is left of standard output. Throws Error(kUsage) when not all of it could be written.
void flush_output();

}  // namespace tessera::launch

// What the library throws.
#pragma once

#include <stdexcept>
#include <string>

#include "tessera/api.h"

namespace tessera {

// The values are the exit codes of the program.
enum class ErrorKind {
  kUsage = 2,  // a request, or an option, that cannot be served
  kInput = 3,  // a model or another file that is missing, damaged or of the wrong kind
  kPeer = 4,   // another rank is lost, or has failed
  kMemory = 5  // too little memory
};

// Reports what users or the environment cause, in one line: `[where] what is wrong, and what to do`. Both
// parts may name fields of a request.
class TESSERA_API Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& where, const std::string& what);

  ErrorKind kind() const { return kind_; }
  int exit_code() const { return static_cast<int>(kind_); }
  // The message with its fields marked, for front ends that spell their names in their own way
  // (core/error.h); what() has the plain names.
  const std::string& message() const { return message_; }

 private:
  Error(ErrorKind kind, std::string message);

  ErrorKind kind_;
  std::string message_;
};

// A broken invariant inside the library: a bug.
class TESSERA_API InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

}  // namespace tessera

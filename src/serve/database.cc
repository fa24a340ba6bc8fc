#include "serve/database.h"

#include <fcntl.h>
#include <sqlite3.h>

#include <cerrno>

#include "core/error.h"
#include "core/system_call.h"
#include "core/text.h"

namespace tessera::serve {
namespace {

// SQLite would make the file readable for others. The files that SQLite puts beside it get the same mode. An
// existing file is not opened here, because closing it would release the locks that this process has on it.
void create(const std::filesystem::path& path) {
  const Descriptor created(
      uninterrupted([&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600); }));
  if (created.number() < 0 && errno != EEXIST)
    usage_error(path.string(), "cannot create: {}", system_reason(errno));
}

}  // namespace

Database::Database(const std::filesystem::path& path) : path_(path) {
  create(path);
  constexpr int kFlags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX;
  try {
    check(::sqlite3_open_v2(std::filesystem::absolute(path).c_str(), &handle_, kFlags, nullptr));
    check(::sqlite3_extended_result_codes(handle_, 1));
    // With an exclusive lock from the start, the index of the log is in this process's memory instead of a
    // file.
    run("PRAGMA locking_mode = EXCLUSIVE");
    run("PRAGMA journal_mode = WAL");
    // A transaction is on disk when its COMMIT returns. NORMAL would flush the log only now and then: a
    // committed transaction would survive the end of this process, but not that of the machine.
    run("PRAGMA synchronous = FULL");
    run("PRAGMA foreign_keys = ON");
    run("BEGIN EXCLUSIVE; COMMIT");
  } catch (const Error&) {
    close();
    throw;
  }
}

Database::~Database() {
  close();
}

void Database::close() {
  ::sqlite3_close_v2(handle_);
}

void Database::check(int code) {
  const int reason = errno;  // SQLite's own record lacks errors of a COMMIT
  if (code == SQLITE_OK || code == SQLITE_ROW || code == SQLITE_DONE) return;
  const std::string where = path_.string();
  const std::string says = printable(handle_ == nullptr ? "no memory" : ::sqlite3_errmsg(handle_));
  switch (code & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      usage_error(where, "another server is using it; end that one, or name another folder");
    case SQLITE_NOTADB:
      input_error(where, "is not a database of SQLite; move it away, or name another folder");
    case SQLITE_CORRUPT:
      input_error(where, "is damaged ({}); move it away, or put a copy in its place", says);
    case SQLITE_FULL:
      usage_error(where, "cannot write: the disk is full");
    case SQLITE_IOERR:
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
      usage_error(where, "cannot open or write: {}", reason == 0 ? says : system_reason(reason));
    case SQLITE_NOMEM:
      throw Error(ErrorKind::kMemory, where, "not enough memory");
    default:
      TESSERA_CHECK(false, "{}: {} ({})", where, says, code);
  }
}

void Database::run(const std::string& sql) {
  check(::sqlite3_exec(handle_, sql.c_str(), nullptr, nullptr, nullptr));
}

int64_t Database::integer(const std::string& sql) {
  Statement statement(*this, sql);
  TESSERA_CHECK(statement.next(), "no row: {}", sql);
  return statement.integer(0);
}

Statement::Statement(Database& database, std::string_view sql) : database_(database) {
  database.check(::sqlite3_prepare_v3(database.handle_, sql.data(), static_cast<int>(sql.size()),
                                      SQLITE_PREPARE_PERSISTENT, &handle_, nullptr));
}

Statement::~Statement() {
  ::sqlite3_finalize(handle_);
}

Statement& Statement::bind(int index, int64_t value) {
  database_.check(::sqlite3_bind_int64(handle_, index + 1, value));
  return *this;
}

Statement& Statement::bind(int index, std::string_view text) {
  const char* begin = text.data() == nullptr ? "" : text.data();
  database_.check(::sqlite3_bind_text64(handle_, index + 1, begin, text.size(), SQLITE_STATIC, SQLITE_UTF8));
  return *this;
}

Statement& Statement::bind_null(int index) {
  database_.check(::sqlite3_bind_null(handle_, index + 1));
  return *this;
}

bool Statement::next() {
  const int code = ::sqlite3_step(handle_);
  if (code == SQLITE_ROW) return true;
  const int reason = errno;
  ::sqlite3_reset(handle_);
  errno = reason;
  database_.check(code);
  return false;
}

void Statement::reset() {
  ::sqlite3_reset(handle_);
}

bool Statement::is_null(int column) const {
  return ::sqlite3_column_type(handle_, column) == SQLITE_NULL;
}

int64_t Statement::integer(int column) const {
  return ::sqlite3_column_int64(handle_, column);
}

std::string Statement::text(int column) const {
  const auto* text = reinterpret_cast<const char*>(::sqlite3_column_text(handle_, column));
  if (text == nullptr) return {};
  return {text, static_cast<size_t>(::sqlite3_column_bytes(handle_, column))};
}

Transaction::~Transaction() {
  if (!is_open_) return;
  try {
    database_.run("ROLLBACK");
  } catch (const Error&) {  // the failure has already undone the transaction
  } catch (const InternalError&) {
  }
}

void Transaction::commit() {
  database_.run("COMMIT");
  is_open_ = false;
}

}  // namespace tessera::serve

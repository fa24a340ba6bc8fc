// An SQLite database for use by a single process.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

struct sqlite3;
struct sqlite3_stmt;

namespace tessera::serve {

// Each function throws an Error of one line that names the file: kUsage if another process has it open, or if
// it cannot be created or written (no permission, a full disk), kInput if it is damaged or not a database,
// kMemory. Only one thread at a time may use it and its statements.
class Database {
 public:
  // Opens the file, or creates it, readable only for its owner. Until this is destroyed, no other process can
  // open it, even for reading; if this process ends by any signal, the file is free again.
  explicit Database(const std::filesystem::path& path);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  // Runs statements that return no rows.
  void run(const std::string& sql);
  // Returns the integer in the first row that a statement returns.
  int64_t integer(const std::string& sql);
  const std::filesystem::path& path() const { return path_; }

 private:
  friend class Statement;
  void close();
  void check(int code);

  std::filesystem::path path_;
  sqlite3* handle_ = nullptr;
};

// A statement that can run again and again. Parameters and columns count from 0.
class Statement {
 public:
  Statement(Database& database, std::string_view sql);
  ~Statement();
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  // Parameters keep their values until they get others. A text must live until then.
  Statement& bind(int index, int64_t value);
  Statement& bind(int index, std::string_view text);
  Statement& bind_null(int index);
  template <typename Value>
  Statement& bind(int index, const std::optional<Value>& value) {
    return value ? bind(index, *value) : bind_null(index);
  }

  // Goes to the next row, and returns whether there is one. After the last row the statement starts over.
  bool next();
  // For statements that return no rows.
  void run() {
    while (next()) {
    }
  }
  // Discards the remaining rows.
  void reset();

  bool is_null(int column) const;
  int64_t integer(int column) const;
  std::string text(int column) const;

 private:
  Database& database_;
  sqlite3_stmt* handle_ = nullptr;
};

// Changes made during its life take effect entirely or not at all. They are undone unless commit() returns.
class Transaction {
 public:
  explicit Transaction(Database& database) : database_(database) { database_.run("BEGIN IMMEDIATE"); }
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;

  void commit();

 private:
  Database& database_;
  bool is_open_ = true;
};

}  // namespace tessera::serve

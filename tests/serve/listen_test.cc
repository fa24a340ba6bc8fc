#include <gtest/gtest.h>

#include <fstream>

#include "core/error.h"
#include "core/system_call.h"
#include "serve/http.h"
#include "tests/support/temporary_folder.h"

namespace tessera::serve {
namespace {

TEST(Keys, AreReadFromAFileThatIsItsOwnersAlone) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "keys";
  const auto write = [&](const std::string& text) {
    std::ofstream(file) << text;
    std::filesystem::permissions(file,
                                 std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  };
  write("# people\n\nalice 0123456789abcdef\nbob   fedcba9876543210\n");
  const auto keys = read_keys(file);
  ASSERT_EQ(keys.size(), 2U);
  EXPECT_EQ(keys[1].owner, "bob");
  EXPECT_EQ(keys[1].secret, "fedcba9876543210");
  for (const char* const wrong : {"", "alice\n", "alice 0123456789abcdef more\n", "alice short\n",
                                  "a 0123456789abcdef\nb 0123456789abcdef\n"}) {
    write(wrong);
    EXPECT_THROW(read_keys(file), Error) << wrong;
  }
  write("alice 0123456789abcdef\n");
  std::filesystem::permissions(file, std::filesystem::perms::group_read, std::filesystem::perm_options::add);
  EXPECT_THROW(read_keys(file), Error);
  EXPECT_THROW(read_keys(folder.path()), Error);
}

TEST(Listen, TakesTheAddressesOfHostsAndFiles) {
  const TemporaryFolder folder;
  const Descriptor any(listen_on("127.0.0.1:0"));
  const std::string address = address_of(any.number());
  EXPECT_TRUE(address.starts_with("127.0.0.1:")) << address;
  EXPECT_THROW(listen_on(address), Error);  // it is in use
  const std::string path = "unix:" + (folder.path() / "socket").string();
  {
    const Descriptor first(listen_on(path));
    EXPECT_EQ(address_of(first.number()), path);
    EXPECT_THROW(listen_on(path), Error);
  }
  const Descriptor second(listen_on(path));  // nobody answers at what the first left
  std::ofstream(folder.path() / "file") << "x";
  EXPECT_THROW(listen_on("unix:" + (folder.path() / "file").string()), Error);
  EXPECT_THROW(listen_on("unix:" + std::string(200, 'x')), Error);
  for (const char* const wrong :
       {"8000", "localhost:port", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:99999", "127.0.0.1:-1",
        "127.0.0.1:80x", "http://127.0.0.1:0", "unix:"})
    EXPECT_THROW(Descriptor(listen_on(wrong)), Error) << wrong;
}

TEST(Access, TakesNamesThatRequestsCanHave) {
  require_names({"*", "https://example.org", "http://localhost:8000"}, {"example.org", "[::1]"});
  for (const char* const wrong : {"", "foo", "https://", "https://example.org/"})
    EXPECT_THROW(require_names({wrong}, {}), Error) << wrong;
  for (const char* const wrong : {"", "example.org:80", "http://example.org", "a b"})
    EXPECT_THROW(require_names({}, {wrong}), Error) << wrong;
}

TEST(Events, KeepTheirLines) {
  EXPECT_EQ(write_event({.data = ""}), "data: \n\n");
  EXPECT_EQ(write_event({.name = "n", .data = "a\r\nb\rc\n", .id = 3}),
            "id: 3\nevent: n\ndata: a\ndata: b\ndata: c\ndata: \n\n");
}

TEST(Errors, HaveTheFormOfTheirApi) {
  EXPECT_EQ(error_response("/v1/images/generations", 429, "rate_limit_exceeded", "busy", "n").body,
            R"({"error":{"message":"busy","type":"requests","param":"n","code":"rate_limit_exceeded"}})"
            "\n");
  EXPECT_EQ(error_response("/sdapi/v1/txt2img", 404, "x", "Sampler not found").body,
            R"({"error":"x","detail":"Sampler not found","body":"","errors":"Sampler not found"})"
            "\n");
}

}  // namespace
}  // namespace tessera::serve

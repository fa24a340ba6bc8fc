#include <algorithm>
#include <cctype>
#include <fstream>
#include <set>
#include <string>

#include "serve/front.h"
#include "serve/routes.h"
#include "tests/serve/fake_jobs.h"
#include "tests/serve/service_fixture.h"
#include "tests/support/golden.h"

namespace tessera::serve {
namespace {

using RouteNames = std::set<std::string>;

std::ifstream open_document() {
  std::ifstream file(golden_folder("").parent_path().parent_path().parent_path() / "docs" / "openapi.yaml");
  EXPECT_TRUE(file.is_open());
  return file;
}

// "GET /v1/jobs" for each operation of docs/openapi.yaml, of which nothing but the two lines that name the
// path and the method is read.
RouteNames documented() {
  std::ifstream file = open_document();
  RouteNames names;
  std::string path;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("  /")) path = line.substr(2, line.size() - 3);
    for (const char* const method : {"get", "post", "put", "patch", "delete"}) {
      if (line != fmt::format("    {}:", method)) continue;
      std::string name = fmt::format("{} {}", method, path);
      std::transform(name.begin(), name.begin() + static_cast<std::ptrdiff_t>(name.find(' ')), name.begin(),
                     ::toupper);
      names.insert(name);
    }
  }
  return names;
}

class OpenApiTest : public ServiceTest {};

TEST_F(OpenApiTest, TheDocumentHasEveryRouteAndNoOther) {
  start();
  RouteNames names;
  for (const Route& route : front_routes(*service_, *metrics_, {})) {
    const bool is_file = route.pattern.starts_with("/page/");  // they are one path there
    names.insert(route.method + " " + (is_file ? "/page/{file}" : route.pattern));
  }
  EXPECT_EQ(documented(), names);
}

// The properties of a schema of the document, each on a line of its own.
std::set<std::string> properties_of(const std::string& schema) {
  std::ifstream file = open_document();
  std::set<std::string> names;
  std::string inside;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("    ") && line[4] != ' ') inside = line.substr(4, line.find(':') - 4);
    if (inside == schema && line.starts_with("        ") && line[8] != ' ')
      names.insert(line.substr(8, line.find(':') - 8));
  }
  return names;
}

TEST_F(OpenApiTest, AnUnknownFieldOfAJobIsAnsweredWithThoseOfTheDocument) {
  start();
  const std::vector<Route> routes = front_routes(*service_, *metrics_, {});
  FakeServer server(routes);
  const Json error = server.post("/v1/jobs", {{"prompt", "a"}, {"bogus", 1}})->json().at("error");
  EXPECT_EQ(error.at("param"), "bogus");
  const std::string message = error.at("message"), begin = "[bogus] is not a known field; known fields are ";
  ASSERT_TRUE(message.starts_with(begin)) << message;
  std::set<std::string> names;
  for (size_t at = begin.size(); at < message.size();) {
    const size_t end = std::min(message.find(", ", at), message.size());
    names.insert(message.substr(at, end - at));
    at = end + 2;
  }
  EXPECT_EQ(names, properties_of("NewJob"));
}

TEST(RoutesTest, WordsGoBeforeParametersForAllMethods) {
  const auto nothing = [](const std::shared_ptr<Exchange>&) {};
  const Routes routes({{"POST", "/videos/edits", nothing}, {"GET", "/videos/{id}", nothing}});
  EXPECT_EQ(routes.find("GET", "/videos/edits").route, nullptr);
  EXPECT_EQ(routes.find("GET", "/videos/edits").methods, "POST, OPTIONS");
  EXPECT_NE(routes.find("GET", "/videos/edit").route, nullptr);
}

}  // namespace
}  // namespace tessera::serve

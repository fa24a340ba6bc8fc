#include "serve/page.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <regex>
#include <string>
#include <utility>

namespace tessera::serve {
namespace {

// Takes one answer.
class OneAnswer : public Exchange {
 public:
  explicit OneAnswer(HttpRequest request) : request_(std::move(request)) {}
  const HttpRequest& request() const override { return request_; }
  void respond(HttpResponse response) override { response_ = std::move(response); }
  void begin_events() override { ADD_FAILURE(); }
  void send(const Event&) override { ADD_FAILURE(); }
  void end_events() override { ADD_FAILURE(); }
  bool is_gone() const override { return false; }
  void on_gone(std::function<void()>) override {}

  const HttpResponse& response() const { return response_; }

 private:
  const HttpRequest request_;
  HttpResponse response_;
};

std::map<std::string, Route> routes_by_path() {
  std::map<std::string, Route> routes;
  for (Route& route : page_routes()) routes.emplace(route.pattern, std::move(route));
  return routes;
}

HttpResponse get(const std::string& path, NamedTexts headers = {}) {
  HttpRequest request;
  request.method = "GET";
  request.path = path;
  request.headers = std::move(headers);
  const auto exchange = std::make_shared<OneAnswer>(std::move(request));
  routes_by_path().at(path).handler(exchange);
  return exchange->response();
}

std::string_view header(const HttpResponse& response, std::string_view name) {
  return text_of(response.headers, name);
}

TEST(Page, EveryFileHasARouteThatNeedsNoKeyAndTakesNoBody) {
  const auto routes = routes_by_path();
  ASSERT_EQ(routes.size(), page_files().size());
  for (const auto& [path, route] : routes) {
    EXPECT_TRUE(route.is_public) << path;
    EXPECT_EQ(route.body_bytes, 0U) << path;
    EXPECT_EQ(route.method, "GET") << path;
    const HttpResponse response = get(path);
    EXPECT_EQ(response.status, 200) << path;
    EXPECT_EQ(header(response, "X-Content-Type-Options"), "nosniff") << path;
    EXPECT_EQ(header(response, "Cache-Control"), "no-cache") << path;
    EXPECT_EQ(response.body.find('\0'), std::string::npos) << path;
  }
}

TEST(Page, TypesFollowFromTheNames) {
  EXPECT_EQ(get("/").content_type, "text/html; charset=utf-8");
  EXPECT_EQ(get("/page/main.js").content_type, "text/javascript; charset=utf-8");
  EXPECT_EQ(get("/page/base.css").content_type, "text/css; charset=utf-8");
  EXPECT_EQ(get("/page/icon.svg").content_type, "image/svg+xml");
}

TEST(Page, BytesAreThoseOfTheFile) {
  const std::string document = get("/").body;
  EXPECT_TRUE(document.starts_with("<!doctype html>\n")) << document.substr(0, 100);
  EXPECT_TRUE(document.ends_with("</html>\n")) << document.substr(document.size() - 100);
  EXPECT_NE(get("/page/queue.js").body.find("·"), std::string::npos) << "UTF-8 is kept";
}

TEST(Page, TheDocumentAllowsNothingFromElsewhereAndNothingInline) {
  const std::string policy(header(get("/"), "Content-Security-Policy"));
  EXPECT_TRUE(policy.starts_with("default-src 'none';")) << policy;
  for (const char* part : {"script-src 'self';", "style-src 'self';", "connect-src 'self';",
                           "base-uri 'none';", "form-action 'none';", "frame-ancestors 'none';"})
    EXPECT_NE(policy.find(part), std::string::npos) << part;
  EXPECT_EQ(policy.find("unsafe"), std::string::npos) << policy;
}

// What the policy would refuse, and what would not be there without a network.
TEST(Page, FilesNameNoOtherHost) {
  const std::regex host(R"((https?:)?//[a-z0-9-]+\.[a-z])");
  for (const PageFile& file : page_files()) {
    std::string text =
        std::regex_replace(std::string(file.bytes), std::regex("http://www\\.w3\\.org/2000/svg"), "");
    std::smatch found;
    EXPECT_FALSE(std::regex_search(text, found, host)) << file.name << ": " << found.str();
  }
}

TEST(Page, EveryFileThatAnotherOneNamesIsThere) {
  const auto routes = routes_by_path();
  size_t count = 0;
  for (const PageFile& file : page_files()) {
    const std::string text(file.bytes);
    const std::regex name(file.name.ends_with(".html") ? R"re((?:src|href)="page/([^"]+)")re"
                                                       : R"re(from '\./([^']+)')re");
    const std::sregex_iterator last;
    for (std::sregex_iterator at(text.begin(), text.end(), name); at != last; ++at) {
      ++count;
      EXPECT_TRUE(routes.contains("/page/" + (*at)[1].str())) << file.name << " names " << (*at)[1];
    }
  }
  EXPECT_GT(count, 10U);
}

TEST(Page, ABrowserThatHasAFileIsToldSo) {
  const HttpResponse first = get("/page/main.js");
  const std::string tag(header(first, "ETag"));
  ASSERT_GT(tag.size(), 10U);
  const HttpResponse again = get("/page/main.js", {{"If-None-Match", tag}});
  EXPECT_EQ(again.status, 304);
  EXPECT_TRUE(again.body.empty());
  EXPECT_EQ(header(again, "ETag"), tag);
  EXPECT_EQ(get("/page/main.js", {{"If-None-Match", "\"other\""}}).status, 200);
  EXPECT_NE(header(get("/page/jobs.js"), "ETag"), tag);
}

}  // namespace
}  // namespace tessera::serve

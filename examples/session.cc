// session: steps two runs together, of which the second begins while the first is under way and is then put
// aside and taken up again.
#include <tessera/session.h>

#include <iostream>

namespace {

tessera::Request request_for(const char* prompt) {
  tessera::Request request;
  request.prompts = {prompt};
  request.seed = 1;
  request.num_inference_steps = 6;
  return request;
}

void report(const char* name, const tessera::Result& result) {
  std::cout << name << ": " << result.images.at(0).width << " x " << result.images.at(0).height
            << " pixels in " << result.step_seconds.size() << " steps\n";
}

}  // namespace

int main() try {
  tessera::Engine engine;  // of the model "shapes", which ships
  tessera::Session session(engine);
  const auto first = session.begin(request_for("a red circle"));
  session.advance();
  const auto second = session.begin(request_for("a blue square above a green triangle"));
  session.advance();

  const tessera::SavedRun aside = session.save(second);
  session.drop(second);
  while (session.is_running(first)) session.advance();
  report("first", session.take(first).at(0));

  const auto again = session.resume(aside);
  while (session.advance()) {
  }
  report("second", session.take(again).at(0));
  return 0;
} catch (const tessera::Error& error) {
  std::cerr << "session: " << error.what() << '\n';
  return error.exit_code();
}

// run_component CASE.json -o OUT.safetensors [--ranks N] [methods as `tessera generate` spells them]: runs a
// component of Open-Sora on the inputs of a golden, and writes the outputs (`out.*`). Ranks are threads.
#include <algorithm>
#include <iostream>

#include "cli/arguments.h"
#include "cli/field_options.h"
#include "core/error.h"
#include "tests/models/stdit/component.h"
#include "weights/safetensors.h"

int main(int count, char** words) try {
  std::vector<std::string> arguments(words + 1, words + count);
  arguments.insert(arguments.begin(), {"generate", "--output-type", "latent"});  // whose file is .safetensors
  std::replace(arguments.begin(), arguments.end(), std::string("--ranks"), std::string("--nproc"));
  const auto command = tessera::cli::parse_arguments(arguments);
  const auto* const given = std::get_if<tessera::job::GenerateArguments>(&command);
  if (!given || given->request.prompts.size() != 1 || !given->run.output) {
    std::cerr << "usage: run_component CASE.json -o OUT.safetensors [--ranks N] [methods]\n";
    return 2;
  }
  const auto outputs = tessera::models::run_component(given->request.prompts.front(), given->parallel);
  tessera::weights::write_safetensors(*given->run.output, outputs);
  return 0;
} catch (const tessera::Error& error) {
  std::cerr << "run_component: " << tessera::spell(error.message(), tessera::cli::option_name) << '\n';
  return error.exit_code();
} catch (const std::exception& error) {
  std::cerr << "run_component: " << error.what() << '\n';
  return 1;
}

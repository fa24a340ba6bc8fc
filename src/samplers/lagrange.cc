#include "samplers/lagrange.h"

#include <utility>

namespace tessera::samplers {

std::vector<std::vector<double>> lagrange_polynomials(const std::vector<double>& nodes) {
  std::vector<std::vector<double>> polynomials;
  for (size_t one = 0; one < nodes.size(); ++one) {
    std::vector<double> polynomial = {1};
    for (size_t zero = 0; zero < nodes.size(); ++zero) {
      if (zero == one) continue;
      // Multiplies by (x - nodes[zero]) / (nodes[one] - nodes[zero]).
      const double distance = nodes[one] - nodes[zero];
      std::vector<double> product(polynomial.size() + 1, 0);
      for (size_t power = 0; power < polynomial.size(); ++power) {
        product[power] -= polynomial[power] * (nodes[zero] - nodes[0]) / distance;
        product[power + 1] += polynomial[power] / distance;
      }
      polynomial = std::move(product);
    }
    polynomials.push_back(std::move(polynomial));
  }
  return polynomials;
}

}  // namespace tessera::samplers

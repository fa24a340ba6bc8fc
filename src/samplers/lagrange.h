// Polynomials through the outputs of earlier steps, for multistep methods that integrate them exactly.
#pragma once

#include <vector>

namespace tessera::samplers {

// For each node the polynomial that is 1 there and 0 at the other nodes, as coefficients of the powers of
// (x - nodes[0]), from 0 up. They are infinite or NaN if two nodes are equal.
std::vector<std::vector<double>> lagrange_polynomials(const std::vector<double>& nodes);

}  // namespace tessera::samplers

"""A small transformer in JAX, and what it costs in a closed form."""
import jax
import jax.numpy as jnp

LAYERS, BATCH, TOKENS, HEADS, DEPTH, WIDTH, INNER = 3, 2, 5, 2, 4, 8, 16


def normed(x):
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def layer(x, weights):
    with jax.named_scope("attention"):
        hidden = normed(x)
        q, k, v = (jnp.einsum("bsd,dhe->bhse", hidden, weights[name]) for name in ("q", "k", "v"))
        shares = jax.nn.softmax(jnp.einsum("bhse,bhte->bhst", q, k), axis=-1)
        x = x + jnp.einsum("bhse,hed->bsd", jnp.einsum("bhst,bhte->bhse", shares, v), weights["o"])
    with jax.named_scope("mlp"):
        return x + jax.nn.relu(normed(x) @ weights["up"]) @ weights["down"]


def transformer(weights, x):
    return jax.lax.scan(lambda state, of_layer: (layer(state, of_layer), None), x, weights)[0]


def lowered():
    """The program: layers in a scan."""
    shapes = {"q": (WIDTH, HEADS, DEPTH), "k": (WIDTH, HEADS, DEPTH), "v": (WIDTH, HEADS, DEPTH), "o": (HEADS, DEPTH, WIDTH),
              "up": (WIDTH, INNER), "down": (INNER, WIDTH)}
    weights = {name: jax.ShapeDtypeStruct((LAYERS, *shape), jnp.float32) for name, shape in shapes.items()}
    return jax.jit(transformer).lower(weights, jax.ShapeDtypeStruct((BATCH, TOKENS, WIDTH), jnp.float32))


def flops():
    """Of products, and of elementwise work by the published rule (docs/published.md)."""
    rows, scores = BATCH * TOKENS, BATCH * HEADS * TOKENS * TOKENS
    products = 2 * rows * WIDTH * (4 * HEADS * DEPTH + 2 * INNER) + 2 * 2 * scores * DEPTH
    # Of a norm the square, its mean, epsilon, the root and the product; of a softmax the difference, the exponential and the quotient;
    # two sums; and the counter of the scan.
    elementwise = 2 * (2 * rows * WIDTH + 3 * rows) + 3 * scores + 2 * rows * WIDTH + 1
    return {"products": LAYERS * products, "elementwise": LAYERS * elementwise}

"""The demo: real carts, a real shop over HTTP, real workers, real kills."""

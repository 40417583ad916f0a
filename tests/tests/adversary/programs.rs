//! Programs that a plugin starts: where they are looked up, their environment, and what of their output reaches a terminal.

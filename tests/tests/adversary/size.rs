//! Large input is answered in bounded time, or refused at once.

//! A tenant chooses what runtimeConfig, `args` and `CNI_ARGS` say.

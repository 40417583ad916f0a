//! Links the launcher in as few pages as possible: each that it touches is a page fault in each call of a plugin.

#[expect(clippy::disallowed_methods, reason = "cargo passes the target to a build script in variables")]
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Its headers, its code and its constants have 3 kB, which are one page then, and not one each.
    println!("cargo::rustc-link-arg-bins=-Wl,-z,noseparate-code");
    // The same for its data, 600 bytes: part of it would be apart so that it can be made read-only, which musl does not do in a
    // static program.
    if std::env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|environment| environment == "musl") {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,norelro");
    }
}

//! Links the launcher in as few pages as possible: each that it touches is a page fault in each call of a plugin.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Its headers, its code and its constants have 3 kB, which are one page then, and not one each.
    println!("cargo::rustc-link-arg-bins=-Wl,-z,noseparate-code");
}

//! The build script of the programs with this crate's entry point, `src/start.s`. It needs the table of relocations that
//! `scripts/install` asks for; otherwise a program begins with the C library's.

#[expect(clippy::disallowed_methods, reason = "cargo passes the flags to a build script in a variable")]
fn main() {
    println!("cargo::rerun-if-changed=../../crates/memory/link/build.rs");
    if std::env::var("CARGO_ENCODED_RUSTFLAGS").is_ok_and(|flags| flags.contains("pack-relative-relocs")) {
        println!("cargo::rustc-link-arg-bins=-Wl,-e,cnikit_start");
    }
}

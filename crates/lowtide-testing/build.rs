//! Binds the double's functions to one another, as the driver's are: a library that is loaded before it
//! and has functions of the same names (the agent) must not come between.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-cdylib=-Wl,-Bsymbolic-functions");
}

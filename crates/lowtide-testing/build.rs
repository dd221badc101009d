//! Binds the double's functions to one another, as the driver's are: a library that is loaded before it
//! and has functions of the same names (the agent) must not come between.

fn main() {
    // The ends of Rust's threads are noted by a function of the C library that takes the loader's lock. A
    // program may call the driver while it has that lock, so the double does without.
    println!("cargo::rustc-link-arg-cdylib=-Wl,--defsym=__cxa_thread_atexit_impl=0");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-cdylib=-Wl,-Bsymbolic-functions");
}

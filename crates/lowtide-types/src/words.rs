//! What many types say of themselves, said once: the words of an enum, each beside its variant, and short `Debug`s.

/// Declares an enum with a word for each variant, as people and receipts read it.
#[doc(hidden)]
#[macro_export]
macro_rules! words {
    (
        $(#[$meta:meta])*
        $access:vis enum $name:ident {
            $($(#[$doc:meta])* $variant:ident = $word:literal,)*
        }
    ) => {
        $(#[$meta])*
        $access enum $name {
            $($(#[$doc])* $variant,)*
        }

        impl $name {
            /// Returns the word for it.
            $access fn as_str(self) -> &'static str {
                match self {
                    $($name::$variant => $word,)*
                }
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

/// Implements `Debug` for a type by a few facts: `debug_as!(Chunk, |it| "Chunk({})", it.size)`.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_as {
    ($name:ty, |$it:pat_param| $($text:tt)+) => {
        impl ::std::fmt::Debug for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                let $it = self;
                ::std::write!(f, $($text)+)
            }
        }
    };
}

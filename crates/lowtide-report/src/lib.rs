//! The report: one HTML file that shows what lowtide's JSON says. It holds its data and asks nobody for anything.
//!
//! `read.js` turns the JSON into charts, rows, receipts and turns, `draw.js` draws a chart and a tree map, `show.js`
//! builds the page. Names of the program become text only, the page's policy lets no other script run, and its data
//! cannot end the element that carries it.

const PAGE: &str = include_str!("page.html");
const SCRIPT: &str = concat!(
    "\"use strict\";\n",
    include_str!("read.js"),
    include_str!("draw.js"),
    include_str!("show.js")
);

/// The digest of the script, which is the only one that a browser runs. A test of the Python package tells it anew.
const HASH: &str = "sha256-hurXFy0XtVURs0DJOOSFLeS1d4z7BixzLlV8q5yfwfI=";

/// Returns the report with its data, which is JSON: `title`, `version`, `documents` (what lowtide printed), and
/// where they apply `at_s` (when it was written) and `small` (for a notebook).
pub fn page(data: &str) -> String {
    PAGE.replacen("{hash}", HASH, 1)
        .replacen("{style}", include_str!("page.css"), 1)
        .replacen("{script}", SCRIPT, 1)
        .replacen("{data}", &data.replace('<', "\\u003c"), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_cannot_end_its_element() {
        let hostile = r#"{"title": "</script><img src=x onerror=alert(1)>{script}"}"#;
        let page = page(hostile);
        assert!(!page.contains("<img") && page.contains("\\u003c/script>\\u003cimg"));
        assert_eq!(page.matches("</script>").count(), 2);
    }
}

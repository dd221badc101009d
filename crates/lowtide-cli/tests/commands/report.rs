//! `lowtide report`: what stands in the file, by its embedded data. `test_report.py` opens such files in a browser.

use std::fs;

use crate::program::Machine;
use serde_json::Value;

/// The data of a report.
fn data(html: &str) -> Value {
    let (_, rest) = html.split_once(r#"id="data">"#).expect("it carries data");
    serde_json::from_str(rest.split_once("</script>").unwrap().0).expect("it is JSON")
}

#[test]
fn a_trace_is_shown_by_stream_with_the_blocks_of_its_peak() {
    let machine = Machine::without_gpu();
    let (trace, html) = (machine.path("trace.csv"), machine.path("report.html"));
    let rows = "Thread,Time,Action,Pointer,Size,Stream\n0,0,allocate,0x1,300,0\n0,1,allocate,0x2,700,7\n0,2,free,0x1,300,0\n";
    fs::write(&trace, rows).unwrap();
    let done = machine.run(&["report", trace.to_str().unwrap(), "-o", html.to_str().unwrap()]);
    assert_eq!(done.code(), 0, "{}", done.err());
    assert!(done.out().contains("report.html: open it in a browser"));
    let page = fs::read_to_string(&html).unwrap();
    let without_names = page.replace("http://www.w3.org/2000/svg", "");
    assert!(!without_names.contains("://") && page.contains("default-src 'none'"));
    let shown = &data(&page)["documents"][0];
    assert_eq!(shown["peak_at"], 2);
    assert_eq!(shown["points"][1]["streams"]["stream 7"], 700);
    assert_eq!(shown["blocks"][0]["until"], Value::Null);
    assert_eq!(shown["blocks"][1]["until"], 3);
}

#[test]
fn what_lowtide_printed_is_shown_whatever_stands_in_its_names() {
    let machine = Machine::without_gpu();
    let (lines, html) = (machine.path("lines.json"), machine.path("report.html"));
    let hostile = "</script><img src=x onerror=alert(1)>";
    let text = format!("{{\"receipts\": [],\n \"name\": \"{hostile}\"}}\n[1]\n");
    fs::write(&lines, text).unwrap();
    let done = machine.run(&["report", lines.to_str().unwrap(), "-o", html.to_str().unwrap()]);
    assert_eq!(done.code(), 0, "{}", done.err());
    let page = fs::read_to_string(&html).unwrap();
    assert!(!page.contains("<img"));
    let documents = &data(&page)["documents"];
    assert_eq!(documents[0]["name"], hostile);
    assert_eq!(documents[1][0], 1);
}

#[test]
fn what_cannot_be_reported_is_said() {
    let machine = Machine::without_gpu();
    let (file, html) = (machine.path("file"), machine.path("report.html"));
    let (file, html) = (file.to_str().unwrap(), html.to_str().unwrap());
    for (content, options, said) in [
        ("hello\n", vec![], "not a trace"),
        ("{\"receipts\": ", vec![], "EOF"),
        ("[]", vec!["--for", "2"], "--for is about a process"),
    ] {
        fs::write(file, content).unwrap();
        let done = machine.run(&[&["report", file, "-o", html][..], &options[..]].concat());
        assert_eq!(done.code(), 3, "{content}");
        assert!(done.err().contains(said), "{}", done.err());
    }
    assert!(!std::path::Path::new(html).exists(), "nothing was written");
    assert_eq!(machine.run(&["report", file]).code(), 2, "the output is missing");
}

//! JSON Pointers (RFC 6901) of patches and the segment paths of reads.

use super::document::MAX_DOCUMENT_DEPTH;
use serde_json::Value;

/// Bytes of a path segment: a key longer than this is no field name.
const MAX_SEGMENT_LEN: usize = 4096;

/// The segments of a pointer; the root is the empty list.
pub(super) type Path = Vec<String>;

/// Reads a pointer. `None` when it is malformed, deeper than a document may be or names a key that no document may have.
pub(super) fn parse_pointer(value: Option<&Value>) -> Option<Path> {
    let text = value?.as_str()?;
    if text.is_empty() {
        return Some(Path::new());
    }
    let mut path = Path::new();
    for segment in text.strip_prefix('/')?.split('/') {
        if path.len() >= MAX_DOCUMENT_DEPTH as usize {
            return None;
        }
        path.push(unescape(segment)?);
    }
    Some(path)
}

/// Reads the segment array of a read or a selector.
pub(super) fn parse_segments(value: Option<&Value>) -> Option<Path> {
    let items = value?.as_array()?;
    // A longer path than any document's is legal and simply matches nothing below the deepest value.
    items
        .iter()
        .map(|item| {
            let segment = item.as_str()?;
            (segment.len() <= MAX_SEGMENT_LEN).then(|| segment.to_owned())
        })
        .collect()
}

/// The pointer's text, for error messages.
pub(super) fn print(path: &[String]) -> String {
    path.iter()
        .map(|segment| format!("/{}", segment.replace('~', "~0").replace('/', "~1")))
        .collect()
}

/// An array index: digits without a leading zero.
pub(super) fn parse_index(segment: &str) -> Option<usize> {
    let digits = segment.bytes().all(|byte| byte.is_ascii_digit());
    let canonical = segment == "0" || !segment.starts_with('0');
    if digits && canonical {
        segment.parse().ok()
    } else {
        None
    }
}

fn unescape(segment: &str) -> Option<String> {
    if segment.len() > MAX_SEGMENT_LEN {
        return None;
    }
    let mut text = String::with_capacity(segment.len());
    let mut characters = segment.chars();
    while let Some(character) = characters.next() {
        text.push(match character {
            '~' => match characters.next()? {
                '0' => '~',
                '1' => '/',
                _ => return None,
            },
            other => other,
        });
    }
    // A key that strict JSON refuses would make the document unreadable for every client.
    let forbidden = matches!(text.as_str(), "__proto__" | "constructor" | "prototype");
    (!forbidden).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pointers_are_read_and_printed() {
        let path = parse_pointer(Some(&json!("/a~1b/~0/"))).expect("pointer");
        assert_eq!(path, ["a/b", "~", ""]);
        assert_eq!(print(&path), "/a~1b/~0/");
        assert_eq!(parse_pointer(Some(&json!(""))), Some(Path::new()));
        let deep = "/a".repeat(60);
        for bad in ["a", "/~2", "/~", "/__proto__", "/a/constructor", &deep] {
            assert_eq!(parse_pointer(Some(&json!(bad))), None, "{bad}");
        }
        assert_eq!(parse_pointer(None), None);
    }

    #[test]
    fn indexes_have_one_form() {
        assert_eq!(parse_index("0"), Some(0));
        assert_eq!(parse_index("10"), Some(10));
        for bad in ["", "01", "-1", "+1", "1e1", "-", "99999999999999999999999"] {
            assert_eq!(parse_index(bad), None, "{bad}");
        }
    }
}

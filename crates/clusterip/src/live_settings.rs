//! Settings that change while we run: a watched ConfigMap, or a file.

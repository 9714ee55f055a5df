fn main() { for d in clusterip_api::definitions() { println!("{}", serde_json::to_string_pretty(&d).unwrap()); } }

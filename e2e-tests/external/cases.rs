//! The test cases: faults of agents, nodes and the API server.

mod api_server_outages;
mod held_address;
mod reports;
mod restored_network;
mod services;
mod takeovers;

use super::deploy_external;

/// All test cases by name.
pub const CASES: [(&str, fn()); 20] = [
    (
        "service_gets_an_address_and_its_status_shows_the_holder",
        services::service_gets_an_address_and_its_status_shows_the_holder,
    ),
    ("short_api_server_outage_moves_no_address", api_server_outages::short_api_server_outage_moves_no_address),
    (
        "addresses_are_released_in_a_long_api_server_outage",
        api_server_outages::addresses_are_released_in_a_long_api_server_outage,
    ),
    ("address_leaves_a_node_that_is_not_ready", takeovers::address_leaves_a_node_that_is_not_ready),
    ("client_reaches_only_the_ports_of_the_service", services::client_reaches_only_the_ports_of_the_service),
    (
        "address_without_changes_is_held_while_the_firewall_can_not_be_written",
        services::address_without_changes_is_held_while_the_firewall_can_not_be_written,
    ),
    (
        "service_that_kube_proxy_ignores_or_with_many_ports_opens_few",
        services::service_that_kube_proxy_ignores_or_with_many_ports_opens_few,
    ),
    ("address_of_a_killed_agent_is_taken_over", takeovers::address_of_a_killed_agent_is_taken_over),
    ("address_of_a_stopped_agent_is_taken_over_at_once", takeovers::address_of_a_stopped_agent_is_taken_over_at_once),
    (
        "address_of_an_agent_without_api_server_is_taken_over",
        takeovers::address_of_an_agent_without_api_server_is_taken_over,
    ),
    ("address_of_a_suspended_agent_is_taken_over", takeovers::address_of_a_suspended_agent_is_taken_over),
    (
        "addresses_are_spread_over_agents_and_redistributed_when_one_dies",
        takeovers::addresses_are_spread_over_agents_and_redistributed_when_one_dies,
    ),
    ("deployment_works_with_exactly_its_permissions", deploy_external::deployment_works_with_exactly_its_permissions),
    (
        "address_and_firewall_are_restored_after_removal_by_hand",
        restored_network::address_and_firewall_are_restored_after_removal_by_hand,
    ),
    ("recreated_interface_is_found_again", restored_network::recreated_interface_is_found_again),
    ("address_of_a_node_without_link_is_taken_over", takeovers::address_of_a_node_without_link_is_taken_over),
    ("agent_reports_its_health_and_metrics", reports::agent_reports_its_health_and_metrics),
    ("agent_without_its_node_or_pools_says_so", reports::agent_without_its_node_or_pools_says_so),
    ("agent_lists_missing_permissions", reports::agent_lists_missing_permissions),
    ("address_of_a_deleted_service_is_free", services::address_of_a_deleted_service_is_free),
];

//! The test cases: faults of agents, nodes and the API server.

mod api_server_outages;
mod held_address;
mod reports;
mod restored_network;
mod services;
mod takeovers;

use std::any::type_name;

use libtest_mimic::Trial;

use super::deploy_external;

/// All test cases.
pub fn all() -> Vec<Trial> {
    vec![
        case(services::service_gets_an_address_and_its_status_shows_the_holder),
        case(api_server_outages::short_api_server_outage_moves_no_address),
        case(api_server_outages::addresses_are_released_in_a_long_api_server_outage),
        case(takeovers::address_of_a_service_with_local_traffic_follows_its_endpoint),
        case(takeovers::address_leaves_a_node_that_is_not_ready),
        case(services::client_reaches_only_the_ports_of_the_service),
        case(services::address_without_changes_is_held_while_the_firewall_can_not_be_written),
        case(services::service_that_kube_proxy_ignores_or_with_many_ports_opens_few),
        case(takeovers::address_of_a_killed_agent_is_taken_over),
        case(takeovers::address_is_taken_over_within_5_s_again_and_again),
        case(takeovers::address_of_a_stopped_agent_is_taken_over_at_once),
        case(takeovers::address_of_an_agent_without_api_server_is_taken_over),
        case(takeovers::address_of_a_suspended_agent_is_taken_over),
        case(takeovers::addresses_are_spread_over_agents_and_redistributed_when_one_dies),
        case(deploy_external::deployment_works_with_exactly_its_permissions),
        case(restored_network::address_and_firewall_are_restored_after_removal_by_hand),
        case(restored_network::recreated_interface_is_found_again),
        case(takeovers::address_of_a_node_without_link_is_taken_over),
        case(reports::agent_reports_its_health_and_metrics),
        case(reports::agent_without_its_node_or_pools_says_so),
        case(reports::agent_lists_missing_permissions),
        case(services::address_of_a_deleted_service_is_free),
    ]
}

/// A test case that is named as its function.
fn case<F: Fn() + Send + 'static>(run: F) -> Trial {
    Trial::test(type_name::<F>().rsplit("::").next().unwrap(), move || {
        run();
        Ok(())
    })
}

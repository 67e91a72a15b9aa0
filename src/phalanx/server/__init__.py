"""The Kubernetes REST API over a store: requests in, replies and watch streams out.

Every kind is served by the same handlers, which work from the rows of `api.kinds`. The server does
not schedule, runs no controllers and knows nothing of its clients.

    app.py                                      Server.handle: authorization, errors, metrics
    health.py                                   livez, readyz, healthz
    context.py                                  what all handlers share
    routes.py, request_info.py                  from method and path to handler and RequestInfo
    http_server.py, http_connection.py, http_parser.py
                                                HTTP/1.1 connections and their limits
    request_bodies.py, serialization.py         bodies to objects; media types
    objects.py                                  stored bytes to replies; Tables; errors
    read_handlers.py, watches.py                get, list, watch
    write_handlers.py, server_side_apply.py, scale.py
                                                create, update, patch, apply
    object_preparation.py                       defaults, metadata and validation of written objects
    deletion.py, eviction.py                    delete, evict
    admission.py, admission_cache.py, limit_ranges.py, resource_quotas.py, group_priorities.py,
    storage_admission.py, service_account_admission.py, service_allocator.py,
    leader_worker_set_pods.py, generated_requests.py
                                                the admission steps
    dynamic_admission/                          webhooks and policies that administrators configure
    binding.py, claim_binding.py, volume_binding.py
                                                bindings of pods, with their devices and volumes
    lease_renewal.py                            many Leases in one request
    event_expiry.py                             Events are deleted after an hour
    kubernetes_service.py, bootstrap_objects.py
                                                objects that the server itself creates
    custom_resources.py, discovery.py           served kinds, discovery, OpenAPI
    conversion_webhooks.py, converted_store.py  versions of custom resources that a webhook converts
    auth_handlers.py                            access reviews, service account tokens
    kubelet_reports.py, pod_logs.py, resource_metrics.py
                                                logs and usage of pods
    component_statuses.py                       `kubectl get componentstatuses`
    web_ui.py, page_api.py, utilisation.py      the web page, and what it reads
    security/                                   authentication, authorization, limits, audit
"""

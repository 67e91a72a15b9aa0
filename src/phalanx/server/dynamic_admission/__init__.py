"""Dynamic admission: webhooks and policies that administrators configure as objects.

    write handlers ─▶ AdmissionHooks.mutate ─▶ validation rules ─▶ AdmissionHooks.validate
                        └─▶ WebhookClient: one HTTPS request per webhook, bounded in time and size

    registry.py         DynamicAdmission: the hooks that concern a request, from the stored objects
    attributes.py       AdmissionAttributes: what a webhook or policy sees of a request
    matching.py         rules, selectors and match conditions
    policies.py         admission policies in CEL
    webhooks.py         AdmissionReviews
    actions.py          bindings and evictions of pods
    webhook_client.py   HTTPS requests to webhooks

Without such objects a write only checks a flag. The handlers wait for hooks before they
commit; an object that has changed meanwhile is reviewed again.
"""

"""EndpointSlices and Endpoints of Services.

controller   informers, work queues, and which Service a change concerns
addresses    the endpoints of a Service: its pods, their addresses and ports
plans        the EndpointSlices and Endpoints that follow, and mirrored slices
"""

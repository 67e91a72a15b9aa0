"""The simulator: the whole control plane in virtual time; scenarios in, timelines out.

    simulation.py                        runs a scenario; start reading here
    scenario.py, events.py, fields.py    the scenario file
    driver.py                            turns events into API requests of users and kubelets
    timeline.py                          follows the API and describes what happened
    invariants.py                        what must hold after every transaction
    virtual_time.py                      an event loop whose clock jumps to the next timer

`phalanx simulate` runs long workloads:

    simulation_setup.py                  what is simulated, and what happened
    core_engine.py                       queue and scheduling cycle alone, without an API server
    workloads/                           readers of traces
    reports/                             figures of a simulation

The components are the real ones; only event loop, clock and randomness are simulated.
"""

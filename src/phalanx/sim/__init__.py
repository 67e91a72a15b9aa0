"""The simulator: the whole control plane in virtual time; scenarios in, timelines out.

    simulation.py                        runs a scenario; start reading here
    scenario.py, events.py, fields.py    the scenario file
    driver.py                            turns events into API requests of users and kubelets
    timeline.py                          follows the API and describes what happened
    invariants.py                        what must hold after every transaction
    virtual_time.py                      an event loop whose clock jumps to the next timer

The components are the real ones; only event loop, clock and randomness are simulated.
"""

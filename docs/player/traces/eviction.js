// Made by docs/player/make_traces.py; not to be edited.
addTrace({"name": "eviction", "group": "eviction", "title": "Eviction, and back from the host tier", "command": "step4_prefix_cache --block-size 4 --num-blocks 6 --host-blocks 4 --tokens 2 --ignore-eos --prompt \"Once upon a time there was a poor fisherman who lived by the sea.\" --prompt \"The wolf said to the lamb that he was\" --prompt \"Once upon a time there was a poor fisherman who lived by the sea.\""}, [
{"schema":1,"step":"step4_prefix_cache","model":"common/fairytale","block_size":4,"blocks":6,"host_blocks":4},
{"event":"plan","sequences":[{"sequence":0,"first":0,"length":16,"token_ids":[2639,617,259,545,461,311,259,940,2302,3019,419,1262,456,260,1220,14],"texts":["Once"," upon"," a"," time"," there"," was"," a"," poor"," fis","herman"," who"," lived"," by"," the"," sea","."]}],"fresh":[0,1,2,3],"changes":{"tables":{"0":[0,1,2,3]},"references":{"0":1,"1":1,"2":1,"3":1},"free":{"taken":[0,1,2,3]}}},
{"event":"commit","sequences":[0],"changes":{"lengths":{"0":16},"contents":{"0":{"hash":"7cc44e97ee632395","identity":1,"parent":0},"1":{"hash":"582e573f9690f896","identity":2,"parent":1},"2":{"hash":"0280eaa1fd3b2350","identity":3,"parent":2},"3":{"hash":"b1d8fdd6ad8e95ed","identity":4,"parent":3}}}},
{"event":"refuse","sequences":[1]},
{"event":"plan","sequences":[{"sequence":0,"first":16,"length":17,"token_ids":[554],"texts":[" He"]}],"fresh":[4],"changes":{"tables":{"0":[0,1,2,3,4]},"references":{"4":1},"free":{"taken":[4]}}},
{"event":"commit","sequences":[0],"changes":{"lengths":{"0":17}}},
{"event":"free","sequence":0,"reason":"length","changes":{"tables":{"0":null},"references":{"0":0,"1":0,"2":0,"3":0,"4":0},"free":{"front":[4],"back":[3,2,1,0]}}},
{"event":"plan","sequences":[{"sequence":1,"first":0,"length":10,"token_ids":[334,2489,356,275,260,287,1654,323,279,311],"texts":["The"," wolf"," said"," to"," the"," l","amb"," that"," he"," was"]}],"evicted":[3],"swaps_out":[[3,0]],"fresh":[4,5,3],"changes":{"tables":{"1":[4,5,3]},"references":{"3":1,"4":1,"5":1},"free":{"taken":[4,5,3]}}},
{"event":"commit","sequences":[1],"changes":{"lengths":{"1":10},"contents":{"3":null,"4":{"hash":"b9bd74bdc7717038","identity":5,"parent":0},"5":{"hash":"efe6ee8659a2f9bf","identity":6,"parent":5}},"host":{"0":{"hash":"b1d8fdd6ad8e95ed","identity":4,"parent":3}}}},
{"event":"refuse","sequences":[2]},
{"event":"plan","sequences":[{"sequence":1,"first":10,"length":11,"token_ids":[906],"texts":[" going"]}],"changes":{}},
{"event":"commit","sequences":[1],"changes":{"lengths":{"1":11}}},
{"event":"free","sequence":1,"reason":"length","changes":{"tables":{"1":null},"references":{"3":0,"4":0,"5":0},"free":{"front":[3],"back":[5,4]}}},
{"event":"plan","sequences":[{"sequence":2,"first":12,"length":16,"token_ids":[2639,617,259,545,461,311,259,940,2302,3019,419,1262,456,260,1220,14],"texts":["Once"," upon"," a"," time"," there"," was"," a"," poor"," fis","herman"," who"," lived"," by"," the"," sea","."],"hits":[0,1,2]}],"fresh":[3],"changes":{"tables":{"2":[0,1,2,3]},"references":{"0":1,"1":1,"2":1,"3":1},"free":{"taken":[3,2,1,0]}}},
{"event":"commit","sequences":[2],"changes":{"lengths":{"2":16},"contents":{"3":{"hash":"b1d8fdd6ad8e95ed","identity":4,"parent":3}}}},
{"event":"plan","sequences":[{"sequence":2,"first":16,"length":17,"token_ids":[554],"texts":[" He"]}],"evicted":[5],"swaps_out":[[5,1]],"fresh":[5],"changes":{"tables":{"2":[0,1,2,3,5]},"references":{"5":1},"free":{"taken":[5]}}},
{"event":"commit","sequences":[2],"changes":{"lengths":{"2":17},"contents":{"5":null},"host":{"1":{"hash":"efe6ee8659a2f9bf","identity":6,"parent":5}}}},
{"event":"free","sequence":2,"reason":"length","changes":{"tables":{"2":null},"references":{"0":0,"1":0,"2":0,"3":0,"5":0},"free":{"front":[5],"back":[3,2,1,0]}}},
{"event":"end","blocks":{"free":1,"cached":5,"in_use":0},"counters":{"prefix_hits":3,"evictions":2,"preemptions":0,"copies":0,"swaps_out":2,"swaps_in":0}}
])

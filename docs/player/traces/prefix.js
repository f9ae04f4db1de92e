// Made by docs/player/make_traces.py; not to be edited.
addTrace({"name": "prefix", "group": "prefix", "title": "A prompt that comes again", "command": "step4_prefix_cache --block-size 4 --tokens 1 --prompt \"Once upon a time there was a poor fisherman who\" --prompt \"Once upon a time there was a poor king who\" --prompt \"Once upon a time there was a poor fisherman who\""}, [
{"schema":1,"step":"step4_prefix_cache","model":"common/fairytale","block_size":4,"blocks":9,"host_blocks":0},
{"event":"plan","sequences":[{"sequence":0,"first":0,"length":11,"token_ids":[2639,617,259,545,461,311,259,940,2302,3019,419],"texts":["Once"," upon"," a"," time"," there"," was"," a"," poor"," fis","herman"," who"]}],"fresh":[0,1,2],"changes":{"tables":{"0":[0,1,2]},"references":{"0":1,"1":1,"2":1},"free":{"taken":[0,1,2]}}},
{"event":"commit","sequences":[0],"changes":{"lengths":{"0":11},"contents":{"0":{"hash":"7cc44e97ee632395","identity":1,"parent":0},"1":{"hash":"582e573f9690f896","identity":2,"parent":1}}}},
{"event":"free","sequence":0,"reason":"length","changes":{"tables":{"0":null},"references":{"0":0,"1":0,"2":0},"free":{"front":[2],"back":[1,0]}}},
{"event":"plan","sequences":[{"sequence":1,"first":8,"length":10,"token_ids":[2639,617,259,545,461,311,259,940,799,419],"texts":["Once"," upon"," a"," time"," there"," was"," a"," poor"," king"," who"],"hits":[0,1]}],"fresh":[2],"changes":{"tables":{"1":[0,1,2]},"references":{"0":1,"1":1,"2":1},"free":{"taken":[2,1,0]}}},
{"event":"commit","sequences":[1],"changes":{"lengths":{"1":10}}},
{"event":"free","sequence":1,"reason":"length","changes":{"tables":{"1":null},"references":{"0":0,"1":0,"2":0},"free":{"front":[2],"back":[1,0]}}},
{"event":"plan","sequences":[{"sequence":2,"first":8,"length":11,"token_ids":[2639,617,259,545,461,311,259,940,2302,3019,419],"texts":["Once"," upon"," a"," time"," there"," was"," a"," poor"," fis","herman"," who"],"hits":[0,1]}],"fresh":[2],"changes":{"tables":{"2":[0,1,2]},"references":{"0":1,"1":1,"2":1},"free":{"taken":[2,1,0]}}},
{"event":"commit","sequences":[2],"changes":{"lengths":{"2":11}}},
{"event":"free","sequence":2,"reason":"length","changes":{"tables":{"2":null},"references":{"0":0,"1":0,"2":0},"free":{"front":[2],"back":[1,0]}}},
{"event":"end","blocks":{"free":7,"cached":2,"in_use":0},"counters":{"prefix_hits":4,"evictions":0,"preemptions":0,"copies":0,"swaps_out":0,"swaps_in":0}}
])
